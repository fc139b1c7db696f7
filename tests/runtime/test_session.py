"""The session against transformers: the same weights, without a cache, in another implementation."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from mothertongue.session import Session
from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.graph import write_device_graph

BLOCK_SIZE = 128
# Two float32 implementations of two layers; the logits are of order 10. Measured: 2e-5.
FLOAT_TOLERANCE = 2e-4
# The int8 kernel sums one row and many rows in another order. Measured: 1e-5.
BATCHING_TOLERANCE = 1e-3
IDS = np.random.default_rng(1).integers(6, 600, size=24).tolist()


def dequantized(weight: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The weight as 8 bits in blocks of 128 along its rows can say it, from the definition."""
    result = np.empty_like(weight)
    for start in range(0, weight.shape[1], BLOCK_SIZE):
        block = weight[:, start : start + BLOCK_SIZE]
        scale = np.abs(block).max(axis=1, keepdims=True) / 127
        result[:, start : start + BLOCK_SIZE] = np.round(block / scale) * scale
    return result


@pytest.fixture(scope="module")
def exact(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph with 8-bit weights and float32 activations, so that an oracle can be met closely."""
    folder = tmp_path_factory.mktemp("exact")
    shutil.copy(checkpoint / "config.json", folder)
    write_device_graph(read_checkpoint(checkpoint), folder, block_size=BLOCK_SIZE, accuracy_level=0)
    return folder


@pytest.fixture(scope="module")
def oracle(checkpoint: Path) -> npt.NDArray[np.float32]:
    """The logits (T, V) of transformers after each of IDS, recomputed from the dequantized weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(1)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    model = Qwen3ForCausalLM(Qwen3Config(**config)).eval()
    weights = load_file(checkpoint / "model.safetensors")
    state = {name: torch.from_numpy(dequantized(w) if w.ndim == 2 else w) for name, w in weights.items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        logits = model(torch.tensor([IDS]), use_cache=False).logits[0]
    return np.asarray(logits.numpy(), np.float32)


@pytest.fixture
def session(exact: Path) -> Session:
    return Session.open(exact, threads=1)


@pytest.fixture
def shipped(bundle: Path) -> Iterator[Session]:
    return Session.open(bundle, threads=1)


def steps(session: Session, ids: list[int]) -> npt.NDArray[np.float32]:
    return np.stack([session.feed([token]) for token in ids])


def test_cached_decoding_equals_recomputing(session: Session, oracle: npt.NDArray[np.float32]) -> None:
    np.testing.assert_allclose(steps(session, IDS), oracle, atol=FLOAT_TOLERANCE)


@pytest.mark.parametrize("length", [1, 2, 7, len(IDS)])
def test_prefill_equals_recomputing(session: Session, oracle: npt.NDArray[np.float32], length: int) -> None:
    np.testing.assert_allclose(session.feed(IDS[:length]), oracle[length - 1], atol=FLOAT_TOLERANCE)


@pytest.mark.parametrize("first", [1, 5, len(IDS) - 1])
def test_a_prompt_in_two_parts_equals_recomputing(
    session: Session, oracle: npt.NDArray[np.float32], first: int
) -> None:
    np.testing.assert_allclose(session.feed(IDS[:first]), oracle[first - 1], atol=FLOAT_TOLERANCE)
    np.testing.assert_allclose(session.feed(IDS[first:]), oracle[-1], atol=FLOAT_TOLERANCE)


def test_the_shipped_graph_steps_as_it_prefills(shipped: Session) -> None:
    stepped = steps(shipped, IDS)
    for length in (1, 8, len(IDS)):
        shipped.reset()
        np.testing.assert_allclose(shipped.feed(IDS[:length]), stepped[length - 1], atol=BATCHING_TOLERANCE)


def test_rewinding_equals_starting_afresh(shipped: Session) -> None:
    fresh = steps(shipped, IDS)
    shipped.reset()
    shipped.feed(IDS[:10])
    shipped.feed([599, 598, 597])
    shipped.rewind(10)
    assert (shipped.position, list(shipped.tokens)) == (10, IDS[:10])
    np.testing.assert_allclose(steps(shipped, IDS[10:]), fresh[10:], atol=BATCHING_TOLERANCE)


def test_the_whole_context_can_be_used_and_no_more(shipped: Session) -> None:
    ids = (IDS * 3)[: shipped.context]
    whole = shipped.feed(ids)
    shipped.rewind(shipped.context - 1)
    np.testing.assert_allclose(shipped.feed(ids[-1:]), whole, atol=BATCHING_TOLERANCE)
    with pytest.raises(ValueError, match="65 ids do not fit a context of 64"):
        shipped.feed([7])
    assert shipped.position == shipped.context


def test_logits_handed_out_are_not_overwritten(shipped: Session) -> None:
    first = shipped.feed([10])
    kept = first.copy()
    shipped.feed([11])
    np.testing.assert_array_equal(first, kept)
    assert (first.shape, first.dtype) == ((600,), np.float32)


@pytest.mark.parametrize("ids", [[], [-1], [600], [5, 600]])
def test_ids_that_are_none_are_refused(shipped: Session, ids: list[int]) -> None:
    with pytest.raises(ValueError, match=r"at least one id|ids must be in \[0, 600\)"):
        shipped.feed(ids)
    assert shipped.position == 0


@pytest.mark.parametrize("position", [-1, 4])
def test_rewinding_beyond_the_cache_is_refused(shipped: Session, position: int) -> None:
    shipped.feed([1, 2, 3])
    with pytest.raises(ValueError, match="cannot rewind"):
        shipped.rewind(position)


def test_past_and_present_share_one_buffer(shipped: Session) -> None:
    # A graph that returned its cache elsewhere would forget what it was fed.
    alone = shipped.feed([20])
    shipped.reset()
    shipped.feed([10])
    assert np.abs(shipped.feed([20]) - alone).max() > 0.1


def test_the_inputs_are_those_of_the_convention(shipped: Session) -> None:
    assert list(shipped.inputs)[:3] == ["input_ids", "attention_mask", "past_key_values.0.key"]
    assert shipped.inputs["past_key_values.1.value"] == ["batch", 2, "past", 16]
    assert (shipped.context, shipped.vocabulary, shipped.threads.count) == (64, 600, 1)

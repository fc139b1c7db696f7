import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mothertongue.errors import CheckpointError
from mothertongue.tokenizer import Tokenizer
from mothertongue_trainer.checkpoint import TrainingState, save_checkpoint
from mothertongue_trainer.document import Document, read_documents
from mothertongue_trainer.evaluation import (
    HeldOutText,
    evaluate,
    heldout_texts,
    model_nats,
    unigram_nats,
    write_evaluation,
)
from mothertongue_trainer.identity import hash_tokenizer
from mothertongue_trainer.model import Qwen3, huggingface_config
from mothertongue_trainer.optimizer import MuonAdamW, build_optimizer
from mothertongue_trainer.shards import Shard
from mothertongue_trainer.tokens import DocumentEncoder

# float32 sums of a few thousand cross-entropies in another order.
NATS_RELATIVE = 1e-5


def save_model(model: Qwen3, folder: Path) -> Path:
    folder.mkdir()
    config = huggingface_config(model.config, model.vocabulary)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def optimizer_of(model: Qwen3, run) -> MuonAdamW:
    return build_optimizer(model, run.recipe.optimizer)


def state_of(run) -> TrainingState:
    return TrainingState(
        step=40, tokens=20_480, recipe=run.recipe.as_dict(), recipe_sha256="r",
        tokenizer_sha256=hash_tokenizer(run.folder / "tokenizer"), certificate_verdict="PASS",
        certificate_sha256="c", despite_audit=False, compute_dtype="float32", device="CPU, 1 threads",
        versions={}, commit=None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(encoded_run) -> Qwen3:
    return Qwen3(encoded_run.recipe.model, 600, seed=1).eval()


def test_bits_per_byte_of_a_bangla_word_by_hand(encoded_run) -> None:
    # নদী: 3 code points, 9 bytes. A model that finds all 600 entries equally likely pays ln 600 for each
    # token and for <|end|>, and no byte is counted for <|end|>.
    encoder = DocumentEncoder(encoded_run.folder / "tokenizer")
    documents = [Document(id="x", language="bn", component="heldout", text="নদী")]
    text = heldout_texts(documents, encoder, documents_per_language=1)["bn"]
    n_text_tokens = len(text.ids[0]) - 2
    quality = text.quality((n_text_tokens + 1) * math.log(600))
    assert (quality.bytes, quality.characters, quality.tokens) == (9, 3, n_text_tokens + 1)
    assert quality.bits_per_byte == pytest.approx((n_text_tokens + 1) * math.log2(600) / 9)
    assert quality.nats_per_token == pytest.approx(math.log(600))
    assert quality.characters_per_token == pytest.approx(3 / n_text_tokens)


def test_nats_equal_the_loss_of_transformers(encoded_run, model: Qwen3, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    oracle = AutoModelForCausalLM.from_pretrained(save_model(model, tmp_path / "checkpoint"))
    random = np.random.default_rng(0)
    documents = [[0, *random.integers(6, 600, size=length).tolist(), 4] for length in (1, 62, 5, 63, 64, 200)]
    expected = 0.0
    for ids in documents:
        for start in range(0, len(ids) - 1, 64):
            window = torch.tensor([ids[start : start + 65]])
            loss = oracle(window[:, :-1]).logits.log_softmax(-1).gather(2, window[:, 1:, None])
            expected -= loss.double().sum().item()
    assert model_nats(model, documents, window=64) == pytest.approx(expected, rel=NATS_RELATIVE)


def test_batching_changes_nothing(encoded_run, model: Qwen3, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = DocumentEncoder(encoded_run.folder / "tokenizer")
    heldout = read_documents(encoded_run.folder / "corpus" / "heldout.jsonl")
    ids = heldout_texts(heldout, encoder, documents_per_language=9)["bn"].ids
    together = model_nats(model, ids, window=64)
    monkeypatch.setattr("mothertongue_trainer.evaluation.BATCH_TOKENS", 1)
    assert model_nats(model, ids, window=64) == pytest.approx(together, rel=NATS_RELATIVE)


def test_a_unigram_model_counts_labels_and_adds_one() -> None:
    shard = Shard(
        tokens=np.array([0, 6, 6, 7, 4], dtype=np.uint16),
        learn=np.array([0, 1, 1, 1, 1], dtype=np.uint8),
        offsets=np.array([0, 5]),
        characters=np.array([3]),
        metadata={},
    )
    probabilities = np.exp(-unigram_nats([shard], vocabulary=8))
    np.testing.assert_allclose(probabilities, np.array([1, 1, 1, 1, 2, 1, 3, 2]) / 12)


def test_evaluation_json_has_the_keys_that_others_read(encoded_run, model: Qwen3, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("corpus", "tokenizer", "tokens"):
        (run / name).symlink_to(encoded_run.folder / name)
    (run / "evaluation.json").write_text('{"chat": {"english_percent": 96.0}}', encoding="utf-8")
    checkpoint = save_checkpoint(run, model, optimizer_of(model, encoded_run), state_of(encoded_run))
    evaluation = evaluate(encoded_run.recipe, checkpoint, run)
    written = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    assert "chat" not in written  # of an older model
    for kind in ("languages", "twin", "unigram"):
        assert set(written[kind]) == {"bn", "en"}
        assert {"bits_per_byte", "nats_per_token", "characters_per_token", "bytes"} <= set(
            written[kind]["bn"]
        )
    assert written["languages"] == evaluation.as_dict()["languages"]
    # Untrained, the model is no better than its twin; knowing the frequencies is.
    assert written["languages"]["bn"]["nats_per_token"] == pytest.approx(math.log(600), rel=0.05)
    assert written["twin"]["bn"]["nats_per_token"] == pytest.approx(math.log(600), rel=0.05)
    assert written["twin"]["bn"] != written["languages"]["bn"]
    assert written["unigram"]["bn"]["bits_per_byte"] < written["twin"]["bn"]["bits_per_byte"] - 0.1


def test_at_most_the_documents_of_the_recipe_are_read(encoded_run) -> None:
    encoder = DocumentEncoder(encoded_run.folder / "tokenizer")
    heldout = list(read_documents(encoded_run.folder / "corpus" / "heldout.jsonl"))
    texts = heldout_texts(heldout, encoder, documents_per_language=5)
    assert {language: len(text.ids) for language, text in texts.items()} == {"bn": 5, "en": 5}
    first = next(document.text for document in heldout if document.language == "en")
    assert texts["en"].ids[0][1:-1] == Tokenizer.open(encoded_run.folder / "tokenizer").encode(first)


def test_a_checkpoint_of_another_tokenizer_is_refused(encoded_run, model: Qwen3, tmp_path: Path) -> None:
    run = Path(shutil.copytree(encoded_run.folder, tmp_path / "run"))
    checkpoint = save_checkpoint(run, model, optimizer_of(model, encoded_run), state_of(encoded_run))
    with (run / "tokenizer" / "tokenizer.json").open("a", encoding="utf-8") as file:
        file.write("\n")  # as many entries, but no longer the same file
    with pytest.raises(CheckpointError, match="trained with another tokenizer than"):
        evaluate(encoded_run.recipe, checkpoint, run)
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        evaluate(encoded_run.recipe, run / "checkpoints" / "absent", run)


def test_a_new_evaluation_leaves_nothing_of_an_older_model(tmp_path: Path) -> None:
    write_evaluation(tmp_path, {"languages": 1, "chat": 2})
    write_evaluation(tmp_path, {"languages": 3})
    assert json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8")) == {"languages": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation.json"]


def test_bits_are_shared_by_the_bytes_of_all_documents() -> None:
    quality = HeldOutText(ids=[[0, 9, 9, 4], [0, 9, 4]], characters=6, bytes=18).quality(math.log(2) * 36)
    assert (quality.bits_per_byte, quality.tokens, quality.documents) == (pytest.approx(2), 5, 2)
    assert quality.characters_per_token == 2

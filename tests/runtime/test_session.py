"""The session against transformers: the same weights, without a cache, in another implementation."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from mothertongue import BundleError
from mothertongue import session as module
from mothertongue.session import Engine, Session

Logits = npt.NDArray[np.float32]
# Two float32 implementations of two layers; the logits are of order 10. Measured: 2e-5.
FLOAT_TOLERANCE = 2e-4
# The int8 kernels sum one row and many rows in another order, so now and then an activation is rounded to its
# other neighbour. With these random weights that moves logits (of order 10) by up to 0.2; a wrong cache
# moves them by several. The graph with float32 activations is held to FLOAT_TOLERANCE.
ROUNDING_TOLERANCE = 0.5
IDS = np.random.default_rng(3).integers(6, 384, size=24).tolist()


@pytest.fixture
def session(exact: Path) -> Session:
    return Session.open(exact, threads=1)


@pytest.fixture
def shipped(bundle: Path) -> Session:
    return Session.open(bundle, threads=1)


def steps(session: Session, ids: list[int]) -> npt.NDArray[np.float32]:
    return np.stack([session.feed([token]) for token in ids])


def test_cached_decoding_equals_recomputing(session: Session, oracle: tuple[list[int], Logits]) -> None:
    ids, expected = oracle
    np.testing.assert_allclose(steps(session, ids), expected, atol=FLOAT_TOLERANCE)


@pytest.mark.parametrize("length", [1, 2, 7, 24])
def test_prefill_equals_recomputing(session: Session, oracle: tuple[list[int], Logits], length: int) -> None:
    ids, expected = oracle
    np.testing.assert_allclose(session.feed(ids[:length]), expected[length - 1], atol=FLOAT_TOLERANCE)


@pytest.mark.parametrize("first", [1, 5, 23])
def test_a_prompt_in_two_parts_equals_recomputing(
    session: Session, oracle: tuple[list[int], Logits], first: int
) -> None:
    ids, expected = oracle
    np.testing.assert_allclose(session.feed(ids[:first]), expected[first - 1], atol=FLOAT_TOLERANCE)
    np.testing.assert_allclose(session.feed(ids[first:]), expected[-1], atol=FLOAT_TOLERANCE)


@pytest.mark.parametrize("chunk_tokens", [7, 8, 9, 12])
@pytest.mark.parametrize("length", [7, 8, 9, 16, 24])
def test_a_prompt_in_chunks_equals_recomputing(
    session: Session,
    oracle: tuple[list[int], Logits],
    monkeypatch: pytest.MonkeyPatch,
    chunk_tokens: int,
    length: int,
) -> None:
    monkeypatch.setattr(module, "CHUNK_TOKENS", chunk_tokens)
    ids, expected = oracle
    np.testing.assert_allclose(session.feed(ids[:length]), expected[length - 1], atol=FLOAT_TOLERANCE)
    session.reset()
    np.testing.assert_allclose(session.feed_each(ids[:length]), expected[:length], atol=FLOAT_TOLERANCE)


def test_logits_after_each_id_do_not_need_the_graph_to_give_them(
    session: Session, oracle: tuple[list[int], Logits]
) -> None:
    ids, expected = oracle
    assert session.engine.keeps_any_logits
    session.engine.keeps_any_logits = False  # as in a bundle that gives those of the last position only
    np.testing.assert_allclose(session.feed_each(ids), expected, atol=FLOAT_TOLERANCE)


def test_the_shipped_graph_steps_as_it_prefills(shipped: Session) -> None:
    stepped = steps(shipped, IDS)
    for length in (1, 8, len(IDS)):
        shipped.reset()
        np.testing.assert_allclose(shipped.feed(IDS[:length]), stepped[length - 1], atol=ROUNDING_TOLERANCE)


def test_rewinding_equals_starting_afresh(shipped: Session) -> None:
    fresh = steps(shipped, IDS)
    shipped.reset()
    shipped.feed(IDS[:10])
    shipped.feed([383, 382, 381])
    shipped.rewind(10)
    assert (shipped.position, list(shipped.tokens)) == (10, IDS[:10])
    np.testing.assert_allclose(steps(shipped, IDS[10:]), fresh[10:], atol=ROUNDING_TOLERANCE)


def test_the_whole_context_can_be_used_and_no_more(shipped: Session) -> None:
    ids = (IDS * 3)[: shipped.context]
    whole = shipped.feed(ids)
    shipped.rewind(shipped.context - 1)
    np.testing.assert_allclose(shipped.feed(ids[-1:]), whole, atol=ROUNDING_TOLERANCE)
    with pytest.raises(ValueError, match="65 ids do not fit a context of 64"):
        shipped.feed([7])
    assert shipped.position == shipped.context


def test_logits_handed_out_are_not_overwritten(shipped: Session) -> None:
    first = shipped.feed([10])
    kept = first.copy()
    shipped.feed([11])
    np.testing.assert_array_equal(first, kept)
    assert (first.shape, first.dtype) == ((384,), np.float32)


@pytest.mark.parametrize("ids", [[], [-1], [384], [5, 384]])
def test_ids_that_are_none_are_refused(shipped: Session, ids: list[int]) -> None:
    with pytest.raises(ValueError, match=r"at least one id|ids must be in \[0, 384\)"):
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
    inputs = shipped.engine.inputs
    assert list(inputs)[:3] == ["input_ids", "attention_mask", "past_key_values.0.key"]
    assert inputs["past_key_values.1.value"] == ["batch", 2, "past", 16]
    assert (shipped.context, shipped.vocabulary, shipped.engine.threads.count) == (64, 384, 1)
    assert shipped.cache_bytes == 2 * 2 * 2 * 16 * 64 * 4


def test_sessions_of_one_engine_share_no_cache(bundle: Path) -> None:
    engine = Engine.open(bundle, threads=1)
    one, two = engine.session(), engine.session()
    alone = steps(one, IDS)
    one.reset()
    for place, token in enumerate(IDS):
        np.testing.assert_array_equal(one.feed([token]), alone[place])
        two.feed([IDS[-1 - place]])
    assert list(two.tokens) == IDS[::-1]


def test_threads_on_one_engine_compute_what_they_compute_alone(bundle: Path) -> None:
    engine = Engine.open(bundle, threads=1)
    prompts = [IDS[start:] + IDS[:start] for start in range(4)]
    alone = [steps(engine.session(), ids) for ids in prompts]
    found: dict[int, Logits] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: steps(engine.session(), prompts[n])}))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, expected in enumerate(alone):
        np.testing.assert_array_equal(found[number], expected)


class Others:
    """A watch that sees what it is told."""

    def __init__(self, cpus: float) -> None:
        self.cpus, self.age_s = cpus, 60.0

    def others(self) -> float:
        return self.cpus


def test_threads_cease_to_spin_beside_other_work_and_the_cache_stays(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "allowed_cpus", lambda: {0, 1})
    monkeypatch.setattr("mothertongue.threads.allowed_cpus", lambda: {0, 1})
    monkeypatch.setattr(module, "cpu_quota", lambda root: None)
    watch = Others(cpus=0.0)
    engine = Engine.open(bundle, threads=2, watch=watch)  # type: ignore[arg-type]
    session = engine.session()
    first = steps(session, IDS[:12])
    assert engine.spinning
    watch.cpus = 1.0
    rest = steps(session, IDS[12:])
    assert not engine.spinning
    undisturbed = steps(Session.open(bundle, threads=1, spinning=False), IDS)
    np.testing.assert_allclose(np.concatenate([first, rest]), undisturbed, atol=ROUNDING_TOLERANCE)


def test_a_file_that_was_replaced_is_never_loaded_anew(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Others(cpus=0.0)
    monkeypatch.setattr(module, "allowed_cpus", lambda: {0, 1})
    engine = Engine.open(copied, threads=2, watch=watch)  # type: ignore[arg-type]
    spinning = engine.spinning
    content = (copied / "model.onnx").read_bytes()
    (copied / "model.onnx").unlink()
    (copied / "model.onnx").write_bytes(content[::-1])
    watch.cpus = 2.0
    engine.session().feed([5])
    assert engine.spinning == spinning


def test_a_loaded_model_that_does_nothing_takes_no_cpu(bundle: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from mothertongue.session import Session;"
        "session = Session.open(Path(sys.argv[1]), spinning=True); session.feed([7]);"
        "start = time.process_time(); time.sleep(1.5); print(time.process_time() - start)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", code, str(bundle)]
    used_s = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert float(used_s) < 0.1


def test_a_session_without_memory_for_its_cache_is_our_error(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.open(bundle, threads=1)

    def full(shape: tuple[int, ...]) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(module, "unfilled", full)
    with pytest.raises(BundleError, match="no memory for a cache of 64 tokens"):
        engine.session()


def test_a_graph_that_cannot_be_loaded_anew_is_tried_again(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.open(bundle, threads=1)
    session = engine.session()
    engine._graph = None
    session.unbind()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_path", bundle / "none.onnx")
        with pytest.raises(BundleError, match=r"none\.onnx: does not load"):
            session.feed([5])
    assert session.position == 0
    session.feed([5])
    assert engine._running == 0


def status_kb(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


linux_only = pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux says what is mapped")


@linux_only
def test_weights_are_mapped_and_not_read_into_memory(shipped: Session) -> None:
    shipped.feed([5])
    assert "tiny/model.onnx.data" in Path("/proc/self/maps").read_text(encoding="utf-8")


@linux_only
def test_what_a_prompt_read_of_the_table_is_let_go(shipped: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    monkeypatch.setattr(module, "let_go", lambda ranges: kept.append(len(ranges)))
    shipped.feed([5])
    assert kept == []
    shipped.feed([5, 6])
    assert kept == [len(shipped.engine.table)] != [0]


@linux_only
def test_a_cache_takes_memory_only_as_it_is_filled(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.open(bundle, threads=1)
    monkeypatch.setattr(engine, "context", 1 << 18)
    before_kb = status_kb("RssAnon")
    session = engine.session()
    session.feed(IDS)
    assert session.cache_bytes == 128 << 20
    # NumPy asks for pages of 2 MiB where a buffer is large: one for each head, layer, key and value, 16 MiB.
    assert status_kb("RssAnon") - before_kb < 24 << 10


def test_an_engine_is_warm_when_it_is_opened(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    run = Session._run
    monkeypatch.setattr(
        Session, "_run", lambda self, ids, logits: (runs.append(len(ids)), run(self, ids, logits))[1]
    )
    assert Engine.open(bundle, threads=1).session().position == 0
    assert runs == [1]

import numpy as np
import pytest

from mothertongue_arbiter import stored_arrays
from mothertongue_arbiter.direction import Direction, signs
from mothertongue_arbiter.frame import Frame, FrameTensor, read_frame, write_frame
from mothertongue_arbiter.frame_witness import FrameWitness


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=(6, 5))
    gradient[1:3] = 0
    return {"param/w": rng.normal(size=(6, 5)), "grad/w": gradient, "param/b": np.zeros(3)}


@pytest.fixture
def witness(arrays, tmp_path, monkeypatch):
    """A witness of a frame on the disk that is read in pieces of 7 elements."""
    tensors = (FrameTensor(name="w", shape=(6, 5)), FrameTensor(name="b", shape=(3,)))
    write_frame(tmp_path / "f.safetensors", Frame(tensors=tensors, arrays=arrays, loss=1.0))
    monkeypatch.setattr(stored_arrays, "PIECE_ELEMENTS", 7)
    return FrameWitness(read_frame(tmp_path / "f.safetensors"), None, seed=3)


def test_what_is_read_in_pieces_is_what_is_read_whole(witness, arrays):
    w, gradient = arrays["param/w"], arrays["grad/w"]
    assert witness.scale("w") == pytest.approx(np.sqrt(np.mean(w**2)), rel=1e-14)
    assert witness.gradient_norm("w") == pytest.approx(np.linalg.norm(gradient), rel=1e-14)
    assert witness.gradient_norm("b") is None
    predicted, typical = witness.slope(Direction(seed=3, scales={"w": 0.5, "b": 1.0}))
    expected = 0.5 * float(gradient.ravel() @ signs(3, "w", 30))
    assert predicted == pytest.approx(expected, rel=1e-13)
    assert typical == pytest.approx(0.5 * np.linalg.norm(gradient), rel=1e-14)


def test_runs_of_zeros_go_on_across_pieces(witness):
    elements = {i for first, end in witness.zero_runs("w") for i in range(first, end)}
    assert elements == set(range(5, 15))


@pytest.mark.parametrize(
    ("entry", "finite"), [(1e200, True), (1e-200, True), (np.nan, False), (np.inf, False)]
)
def test_a_norm_is_finite_exactly_when_all_entries_are(entry, finite):
    frame = Frame(
        tensors=(FrameTensor(name="x", shape=(2,)),), arrays={"param/x": np.array([0.0, entry])}, loss=1.0
    )
    norm = FrameWitness(frame, None, seed=0).norm("param/x")
    assert np.isfinite(norm) == finite
    assert not finite or norm == pytest.approx(entry)

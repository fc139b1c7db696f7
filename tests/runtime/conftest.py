"""The tiny bundle of all tests of the runtime: random weights, committed, made by make_tiny.py."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import mothertongue
from mothertongue.bundle import file_record
from mothertongue.chat import ChatFormat

HERE = Path(__file__).parent
ACCURACY_LEVEL = b"accuracy_level\x18"  # an attribute of ONNX: its name, then the tag of its integer


@pytest.fixture(scope="session")
def bundle() -> Path:
    """The bundle; a test that alters one copies it first (`copied`)."""
    return HERE / "tiny"


@pytest.fixture(scope="session")
def exact(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same graph with float32 activations, so that an oracle can be met closely."""
    folder = Path(shutil.copytree(bundle, tmp_path_factory.mktemp("exact") / "tiny"))
    graph = (folder / "model.onnx").read_bytes()
    assert ACCURACY_LEVEL + b"\x04" in graph
    (folder / "model.onnx").write_bytes(graph.replace(ACCURACY_LEVEL + b"\x04", ACCURACY_LEVEL + b"\x00"))
    return folder


@pytest.fixture(scope="session")
def oracle() -> tuple[list[int], npt.NDArray[np.float32]]:
    """Ids (T,) and the logits (T, V) of transformers after each, recomputed from the dequantized weights."""
    with np.load(HERE / "oracle.npz") as file:
        return file["ids"].tolist(), file["logits"]


@pytest.fixture
def copied(bundle: Path, tmp_path: Path) -> Path:
    """A copy of the bundle that the test may break, in a folder with a space and Bangla letters."""
    return Path(shutil.copytree(bundle, tmp_path / "মডেল ১"))


@pytest.fixture(scope="session")
def chat_format(bundle: Path) -> ChatFormat:
    return ChatFormat.open(bundle)


@pytest.fixture
def model(bundle: Path) -> mothertongue.Model:
    return mothertongue.load(bundle, threads=1)


@pytest.fixture(scope="session")
def sign() -> Callable[[Path, str], None]:
    """Writes size and hash of an altered file into the manifest, as an attacker would."""

    def sign(folder: Path, name: str) -> None:
        path = folder / "manifest.json"
        fields = json.loads(path.read_text(encoding="utf-8"))
        record = file_record(folder / name)
        fields["files"][name] = {"sha256": record.sha256, "bytes": record.bytes}
        path.write_text(json.dumps(fields), encoding="utf-8")

    return sign

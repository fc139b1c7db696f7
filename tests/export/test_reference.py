from pathlib import Path

import onnx
import pytest

from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.pytorch import PyTorchModel
from mothertongue_export.reference import reference_max_abs, write_reference


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_the_fp32_graph_equals_pytorch_with_any_past_and_batch(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = request.getfixturevalue(kind)
    model = PyTorchModel.open(folder)
    path = write_reference(read_checkpoint(folder), tmp_path)
    difference = reference_max_abs(model, path, read_checkpoint(folder).architecture)
    assert 0 < difference < 1e-4
    operators = {node.domain for node in onnx.load(path).graph.node}
    assert operators <= {"", "ai.onnx"}, "the reference is for anyone: standard operators only"


def test_another_model_is_not_equal(tied: Path, untied: Path, tmp_path: Path) -> None:
    path = write_reference(read_checkpoint(untied), tmp_path)
    assert reference_max_abs(PyTorchModel.open(tied), path, read_checkpoint(tied).architecture) > 0.1

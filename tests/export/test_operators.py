from pathlib import Path

import numpy as np

from mothertongue_export.operators import Operators
from mothertongue_export.quantization import Plan, Storage
from mothertongue_export.weights_file import WeightsFile


def test_a_constant_is_made_once_and_a_node_is_named_after_its_output(tmp_path: Path) -> None:
    with WeightsFile(tmp_path / "model.onnx.data") as weights:
        add = Operators(
            {}, weights, Plan(default=Storage(bits=8, block_size=32)), accuracy_level=4, epsilon=1e-6
        )
        assert add.integers("one", 1) == add.integers("one", 1) == "one"
        name = add.linear("hidden", np.ones((4, 32), np.float32), "projected")
    assert [tensor.name for tensor in add.initializers] == ["one", "projected.steps", "projected.scales"]
    assert [node.name for node in add.nodes] == [name] == list(add.nodes[0].output)

"""What docs/runtime.md shows runs as it stands, with the tiny bundle in the place of its own."""

import re
from pathlib import Path

import pytest

from mothertongue import Sampling

PAGE = Path(__file__).parents[2] / "docs/runtime.md"


def test_the_example_runs(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert '"bundles/nano"' in block
    exec(compile(block.replace('"bundles/nano"', repr(str(bundle))), str(PAGE), "exec"), {})
    assert re.search(r"(end|context)\n", capsys.readouterr().out)


def test_every_field_of_sampling_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in vars(Sampling()) if f"`{name}`" not in text] == []

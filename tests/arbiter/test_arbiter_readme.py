"""Every Python block of packages/arbiter/README.md runs, one after the other, and says what the text says."""

import re
from pathlib import Path

import pytest
from tiny_trainer import tiny_trainer

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.pytest_plugin import Arbiter

README = Path(__file__).parents[2] / "packages" / "arbiter" / "README.md"


@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # of accelerate, about this machine
def test_the_blocks_of_the_readme_run_in_their_order(tmp_path, capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    function, test, monitor, trainer, jax = blocks
    names = {"__name__": "readme", "trainer": tiny_trainer(tmp_path, steps=1)}

    def run(block):
        exec(compile(block, "README.md", "exec"), names)
        return capsys.readouterr().out

    assert "PASS gradient values relative error" in run(function)
    assert names["certificate"].verdict == Verdict.PASS, names["certificate"].checks
    run(test)
    for fact in ("test_gradients", "test_all_but_one"):
        names[fact](Arbiter())
    assert run(monitor).startswith("PASS 20 steps")
    run(trainer)
    assert run(jax) == "PASS\n"

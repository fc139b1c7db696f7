"""The example of docs/arbiter.md runs, and its table names checks that exist."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "arbiter.md").read_text(encoding="utf-8")


def test_the_example_is_a_whole_program_that_passes():
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    found = {}
    exec(program, found)
    assert {check.name for check in found["certificate"].checks} >= {
        "gradient values",
        "labels",
        "update parity",
    }


def test_the_example_broken_in_one_line_fails():
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    sound = "self.head(torch.tanh(self.embedding(ids)))"
    assert sound in program
    found = {}
    broken = program.replace(sound, "self.head(torch.tanh(self.embedding(ids)).detach())")
    exec(broken.replace('assert certificate.verdict == "PASS"', ""), found)
    assert found["certificate"].verdict == "FAIL"

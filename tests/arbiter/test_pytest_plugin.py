import ast
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

TESTS_OF_A_USER = """
import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)


class Run:
    def __init__(self, change=lambda x: x):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16))
        nn.init.normal_(self.model[0].weight, std=0.1)  # knows nothing yet: the loss is ln 16
        self.change = change

    def batch(self, step):
        return torch.randint(0, 16, (3, 7), generator=torch.Generator().manual_seed(step))

    def loss(self, model, ids):
        logits = model[1](self.change(model[0](ids[:, :-1])))
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def broken():
    return Run(lambda x: x.detach() + 0 * x)


def test_sound(arbiter):
    assert arbiter(Run()).verdict == "PASS"


def test_broken(arbiter):
    arbiter(broken())


def test_broken_and_allowed(arbiter):
    allowed = {"gradient values", "gradient presence", "dead elements"}
    assert arbiter.check(broken(), allow=allowed).verdict == "FAIL"


def test_allowed_by_a_name_that_nothing_has(arbiter):
    arbiter.check(Run(), allow={"gradient value"})


def test_no_run(arbiter):
    arbiter(object())
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What pytest says about the tests above, in a process of its own, with the plugin by its entry point."""
    file = tmp_path_factory.mktemp("user") / "test_user.py"
    file.write_text(TESTS_OF_A_USER)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", file.name]
    return subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=False).stdout


def test_a_sound_run_passes_and_its_certificate_is_handed_back(said):
    assert "PASSED test_user.py::test_sound" in said


def test_a_broken_run_fails_with_the_page_and_without_a_traceback(said):
    assert "FAILED test_user.py::test_broken - Failed: the arbiter does not pass this run" in said
    page = said.split("the arbiter does not pass this run")[1]
    assert "FAIL     gradient " in page
    assert "FAIL at step 0:" in page
    assert "Traceback" not in said
    assert "pytest_plugin.py" not in said


def test_what_is_allowed_may_fail(said):
    assert "PASSED test_user.py::test_broken_and_allowed" in said


def test_a_name_that_no_check_has_and_an_object_that_is_no_run_fail_in_one_line(said):
    assert "allow: no check named gradient value" in said
    assert "this run cannot be audited: object: no model, loss, batch" in said


def test_pytest_finds_the_fixture_by_its_entry_point():
    named = {point.value for point in entry_points(group="pytest11")}
    assert "mothertongue_arbiter.pytest_plugin" in named


def test_the_plugin_loads_nothing_heavy():
    code = (
        "import sys, pytest; before = set(sys.modules); import mothertongue_arbiter.pytest_plugin\n"
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "jax", "numpy", "rich", "transformers"} & set(ast.literal_eval(loaded))

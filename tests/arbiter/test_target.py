import builtins
from types import SimpleNamespace

import pytest
from zoo import ZooRun

from mothertongue_arbiter import target
from mothertongue_arbiter.errors import ArbiterError


def test_a_suffix_is_resolved_through_the_entry_points(tmp_path, monkeypatch):
    run = ZooRun()
    entry = SimpleNamespace(load=lambda: lambda path: run, value="somewhere:make")
    monkeypatch.setattr(target, "entry_points", lambda group, name: (entry,) if name == "toml" else ())
    path = tmp_path / "a.toml"
    path.touch()
    assert target.run_from_file(path) is run


@pytest.mark.parametrize("text", ["x.py", "absent.py:make", ":make", "a.txt:make"])
def test_what_is_no_file_and_function_is_refused(text):
    with pytest.raises(ArbiterError, match=r"FILE\.py:FUNCTION expected"):
        target.run_from_function(text)


def test_a_missing_function_is_named(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(ArbiterError, match="no function 'make'"):
        target.run_from_function(f"{path}:make")


def test_a_model_is_the_work_of_the_adapter_for_transformers(tmp_path):
    with pytest.raises(ArbiterError, match="nothing is downloaded"):
        target.run_from_model(tmp_path / "absent", None)


def test_without_torch_the_install_line_is_the_answer(tmp_path, monkeypatch):
    def absent(name, *rest):
        if name.startswith("mothertongue_arbiter.torch"):
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return original(name, *rest)

    original = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ArbiterError, match=r"pip install 'mothertongue-arbiter\[torch\]'"):
        target.run_from_model(tmp_path, None)

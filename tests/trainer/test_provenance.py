import subprocess

import pytest
import torch

from mothertongue_trainer.provenance import code_commit, versions


def test_versions_name_python_and_torch() -> None:
    assert versions()["torch"] == torch.__version__
    assert set(versions()) >= {"python", "mothertongue-trainer"}


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", absent)
    assert code_commit() is None

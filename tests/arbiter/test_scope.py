import importlib
import subprocess
import sys

import pytest

from mothertongue_arbiter.scope import arbiter_sha256, code_of, revision, sha256_of


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Three modules: `run_a` uses `step_a`, nothing uses `other_a`."""
    texts = {
        "step_a": "def take():\n    return 1\n",
        "run_a": "from step_a import take\nimport json, numpy\n\n\nclass Run:\n    step = take\n",
        "other_a": "",
    }
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    for name in texts:
        importlib.import_module(name)
    yield tmp_path
    for name in texts:
        sys.modules.pop(name, None)


def test_the_code_of_a_run_is_what_its_module_uses_of_its_own_project(project):
    assert list(code_of(["run_a"])) == ["run_a", "step_a"]


@pytest.mark.parametrize(
    ("changed", "differs"), [("step_a", ["step_a"]), ("run_a", ["run_a"]), ("other_a", [])]
)
def test_a_change_of_the_code_that_is_used_is_seen(project, changed, differs):
    before = code_of(["run_a"])
    with (project / f"{changed}.py").open("a", encoding="utf-8") as file:
        file.write("# now different\n")
    now = code_of(["run_a"])
    assert [name for name in now if now[name] != before[name]] == differs


def test_libraries_are_not_followed_but_a_root_among_them_is_hashed():
    assert list(code_of(["numpy.linalg", "torch.nn", "absent"])) == ["numpy.linalg"]


def test_parts_are_told_apart_by_their_length():
    assert sha256_of("ab", "c") != sha256_of("a", "bc")
    assert len(arbiter_sha256()) == 64


def test_a_commit_with_changes_is_told_from_a_clean_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert (revision().commit, revision().dirty) == (None, None)
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    (tmp_path / "a").write_text("1", encoding="utf-8")
    for command in (["init", "-q"], ["add", "a"], [*who, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *command], check=True)
    assert (len(revision().commit or ""), revision().dirty) == (40, False)
    (tmp_path / "a").write_text("2", encoding="utf-8")
    assert revision().dirty is True

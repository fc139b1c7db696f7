import contextlib
import errno
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner, Result

from mothertongue import command
from mothertongue.errors import BundleError, CheckFailed


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `mothertongue sample`, a command that does what it is given."""

    def run(body: Callable[[], object]) -> Result:
        sample = click.Command("sample", callback=body)
        entry_point = SimpleNamespace(name="sample", value="test:sample", load=lambda: sample)

        def entry_points(group: str, name: str | None = None) -> list[SimpleNamespace]:
            return [entry_point] if name in (None, "sample") else []

        monkeypatch.setattr(command, "entry_points", entry_points)
        return CliRunner().invoke(command.main, ["sample"])

    return run


def failing(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "exit_code", "line"),
    [
        (BundleError("nano: no such bundle"), 2, "Error: nano: no such bundle\n"),
        (CheckFailed("parity: missed"), 1, "Error: parity: missed\n"),
        (KeyboardInterrupt(), 130, "Stopped.\n"),
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), 2, "Error: a/b: No space left on device\n"),
        (OSError("odd"), 2, "Error: odd\n"),
    ],
)
def test_a_failure_is_one_line(
    run: Callable[..., Result], error: BaseException, exit_code: int, line: str
) -> None:
    result = run(failing(error))
    assert (result.exit_code, result.stderr, result.stdout) == (exit_code, line, "")


def test_a_bug_keeps_its_traceback(run: Callable[..., Result]) -> None:
    result = run(failing(RuntimeError("a bug")))
    assert isinstance(result.exception, RuntimeError)


def test_a_command_may_answer_that_it_does_not_know(run: Callable[..., Result]) -> None:
    result = run(lambda: click.get_current_context().exit(3))
    assert result.exit_code == 3


def test_a_command_of_a_package_not_installed_is_answered_with_its_install_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "entry_points", lambda group, name=None: [])
    result = CliRunner().invoke(command.main, ["train"])
    assert result.exit_code == 2
    assert "'train' needs another package: pip install mothertongue-trainer" in result.stderr


def test_an_unknown_command_is_bad_usage() -> None:
    result = CliRunner().invoke(command.main, ["chta"])
    assert result.exit_code == 2
    assert "chta" in result.stderr


def shown(program: list[str], environment: dict[str, str]) -> bytes:
    """Return what `program` writes to a terminal."""
    process_id, descriptor = pty.fork()
    if process_id == 0:
        os.execve(program[0], program, os.environ | environment)
    seen = b""
    with contextlib.suppress(OSError):  # Linux says so when the other side of a terminal closes
        while piece := os.read(descriptor, 4096):
            seen += piece
    os.close(descriptor)
    os.waitpid(process_id, 0)
    return seen


def test_a_terminal_keeps_its_encoding_and_a_pipe_gets_utf_8() -> None:
    program = [sys.executable, "-m", "mothertongue", "inspect", "é-নদী"]
    environment = {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "1"}
    at_terminal = shown(program, environment)
    assert b"\xe9-\\u09a8\\u09a6\\u09c0: no such bundle" in at_terminal
    piped = subprocess.run(program, env=os.environ | environment, capture_output=True, check=False)
    assert "é-নদী: no such bundle" in piped.stderr.decode("utf-8")


def test_doctor_writes_no_escape_codes_to_a_terminal_without_colours() -> None:
    program = [sys.executable, "-m", "mothertongue", "doctor"]
    seen = shown(program, {"TERM": "dumb", "NO_COLOR": "1"})
    assert b"good  python" in seen
    assert b"\x1b" not in seen

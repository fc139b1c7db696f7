import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mothertongue import Answer, Sampling, Token, cli
from mothertongue.command import main

QUESTION = "নদী শব্দের অর্থ কী?"
COMMANDS = ["chat", "generate", "inspect", "doctor", "bench"]
MAX_WAIT_S = 30  # for an interactive program on a busy machine


def run(*arguments: object, text: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=text)


def only_object(result: Result) -> dict[str, Any]:
    """The one JSON object on standard output of a command that ended well."""
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_what_a_command_does(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert "Usage: mothertongue" in result.stdout


def test_a_piped_question_is_answered(bundle: Path) -> None:
    result = run("chat", bundle, "--max-tokens", 8, text=QUESTION)
    assert result.exit_code == 0
    assert result.stdout.endswith("\n")
    assert result.stderr == "(--max-tokens reached)\n"


def test_a_piped_answer_is_the_text_of_the_json(bundle: Path) -> None:
    found = only_object(run("chat", bundle, "--json", text=QUESTION))
    assert found["text"] + "\n" == run("chat", bundle, text=QUESTION).stdout
    assert found["finish_reason"] in ("end", "context")
    assert found["tokens_per_second"] > 0
    assert set(found) >= {"prompt_tokens", "tokens", "seconds_to_first_token"}


def test_the_default_is_greedy_and_a_seed_repeats(bundle: Path) -> None:
    def text(*options: object) -> str:
        return str(only_object(run("chat", bundle, "--json", *options, text=QUESTION))["text"])

    assert text() == text("--temperature", 1, "--top-k", 1)
    seeded = [text("--temperature", 1.5, "--seed", seed) for seed in (1, 1, 2)]
    assert seeded[0] == seeded[1] != seeded[2]


def test_the_defaults_are_those_of_sampling() -> None:
    defaults = {option.name: option.default for option in cli.chat.params}
    names = [
        "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"
    ]  # fmt: skip
    assert {name: defaults[name] for name in names} == {name: getattr(Sampling, name) for name in names}


def test_a_stop_text_ends_an_answer(bundle: Path) -> None:
    whole = only_object(run("chat", bundle, "--json", text=QUESTION))["text"]
    stop = whole[len(whole) // 2 :][:2]
    found = only_object(run("chat", bundle, "--json", "--stop", stop, text=QUESTION))
    assert (found["text"], found["finish_reason"]) == (whole.partition(stop)[0], "stop")


def test_a_system_message_is_heard(bundle: Path) -> None:
    plain = only_object(run("chat", bundle, "--json", text="a"))
    told = only_object(run("chat", bundle, "--json", "--system", "b", text="a"))
    assert told["prompt_tokens"] > plain["prompt_tokens"]


def test_a_text_is_continued_from_an_argument_or_a_pipe(bundle: Path) -> None:
    argument = only_object(run("generate", bundle, "নদী", "--json", "--max-tokens", 5))
    piped = only_object(run("generate", bundle, "--json", "--max-tokens", 5, text="নদী"))
    assert argument["text"] == piped["text"]
    assert run("generate", bundle, "নদী", "--max-tokens", 5).stdout == argument["text"] + "\n"


def test_inspect_tells_what_a_bundle_is(bundle: Path) -> None:
    found = only_object(run("inspect", bundle, "--json"))
    assert (found["context"], found["vocabulary"], found["parity"]) == (64, 384, {"verdict": "PASS"})
    assert found["inputs"]["input_ids"] == ["batch", "seq"]
    table = run("inspect", bundle).stdout
    for expected in ("every byte verified", "tiny", "model.onnx.data", "past_key_values.1.key", "PASS"):
        assert expected in table


def test_bench_reports_speed_with_the_machine(bundle: Path) -> None:
    found = only_object(run("bench", bundle, "--threads", 1, "--json"))
    assert set(found) >= {
        "prefill",
        "decode",
        "time_to_first_token",
        "load_ms",
        "peak_memory_bytes",
        "device",
    }
    assert "% of" in run("bench", bundle, "--threads", 1).stdout


def test_doctor_is_good_or_exits_with_one(bundle: Path, copied: Path) -> None:
    assert only_object(run("doctor", bundle, "--json"))["good"] is True
    (copied / "config.json").write_bytes(b"")
    result = run("doctor", copied)
    assert result.exit_code == 1
    assert "bad   bundle" in result.stdout
    assert "copy or export the bundle again" in result.stdout


def test_a_bundle_in_a_folder_with_a_space_and_bangla_letters_works(copied: Path) -> None:
    assert only_object(run("chat", copied, "--json", text=QUESTION))["tokens"] > 0


@pytest.mark.parametrize("name", ["chat", "generate", "inspect", "bench"])
def test_a_missing_bundle_is_one_line(name: str, tmp_path: Path) -> None:
    result = run(name, tmp_path / "none", text="a")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "no such bundle; make one with `make chat`" in result.stderr


@pytest.mark.parametrize("name", ["chat", "generate", "inspect", "bench"])
def test_an_altered_bundle_is_one_line(name: str, copied: Path) -> None:
    content = bytearray((copied / "model.onnx.data").read_bytes())
    content[1000] ^= 1
    (copied / "model.onnx.data").write_bytes(content)
    result = run(name, copied, "--json", text="a")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "model.onnx.data: sha256 is" in result.stderr


@pytest.mark.parametrize("name", ["chat", "generate"])
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "the prompt is empty"),
        (" \n ", "the prompt is empty"),
        (b"\xff\xfe", "byte 0 is not UTF-8"),
        ("ন" * 500, "the model reads at most 63; shorten it"),
    ],
)
def test_a_prompt_that_cannot_be_answered_is_one_line(
    bundle: Path, name: str, text: str | bytes, complaint: str
) -> None:
    result = run(name, bundle, text=text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert complaint in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--temperature", "nan"),
        ("--temperature", "-1"),
        ("--top-p", "0"),
        ("--top-k", "0"),
        ("--seed", "-1"),
        ("--max-tokens", "0"),
        ("--min-p", "2"),
        ("--repetition-penalty", "0"),
        ("--presence-penalty", "inf"),
        ("--frequency-penalty", "nan"),
        ("--stop", ""),
        ("--threads", "0"),
        ("--temprature", "1"),
    ],
)
def test_an_option_out_of_range_is_bad_usage(bundle: Path, options: tuple[str, str]) -> None:
    result = run("chat", bundle, *options, text="a")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr


def test_without_standard_input_a_prompt_is_asked_for(bundle: Path) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m mothertongue chat {shlex.quote(str(bundle))} <&-"
    process = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (2, "")
    assert "the prompt is empty" in process.stderr


@pytest.mark.parametrize(
    "arguments", [["generate", "BUNDLE", b"\xff"], ["chat", "BUNDLE", "--system", b"\xff"]]
)
def test_an_argument_that_is_no_text_is_one_line(bundle: Path, arguments: list[str | bytes]) -> None:
    command = [sys.executable, "-m", "mothertongue", *(bundle if a == "BUNDLE" else a for a in arguments)]
    process = subprocess.run(command, input=b"a", capture_output=True, check=False)
    expected = b"Error: the text holds bytes that are not UTF-8; type or save it as UTF-8\n"
    assert (process.returncode, process.stdout, process.stderr) == (2, b"", expected)


def test_a_closed_pipe_is_quiet(bundle: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "mothertongue", "inspect", str(bundle)]
    process = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (process.returncode, process.stderr) == (128 + signal.SIGPIPE, b"")


def test_an_answer_stopped_by_hand_does_not_end_the_conversation(capsys: pytest.CaptureFixture[str]) -> None:
    class Interrupted:
        def say(self, question: str, *, graphemes: bool) -> Answer:
            return Answer(self.write, prompt_tokens=1)

        def write(self, cancelled: Callable[[], bool]) -> Generator[Token, None, str]:
            yield Token(text="so far", id=7, logprob=0.0)
            raise KeyboardInterrupt

    cli.ask(Interrupted(), "a question")  # type: ignore[arg-type]
    assert capsys.readouterr().out == "so far\n(stopped)\n"


def test_bytes_that_are_no_text_do_not_end_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter([b"\xff", b"/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines).decode("utf-8"))
    cli.converse(object())  # type: ignore[arg-type]
    assert capsys.readouterr().out == "(the terminal sent bytes that are no text)\n"


class Terminal:
    """The program at a terminal without colours."""

    def __init__(self, locale: str, *arguments: str) -> None:
        self.status: tuple[int, int] | None = None
        self.process_id, self.descriptor = pty.fork()
        if self.process_id == 0:
            environment = os.environ | {"TERM": "dumb", "NO_COLOR": "1", "LC_ALL": locale}
            os.execve(sys.executable, [sys.executable, "-m", "mothertongue", *arguments], environment)

    def read_until(self, expected: str, *, knock: str = "") -> str:
        """What is shown up to `expected`; `knock` is typed once a second until then."""
        seen, start_s, knocks = b"", time.monotonic(), 0
        while expected.encode() not in seen:
            waited_s = time.monotonic() - start_s
            assert waited_s < MAX_WAIT_S, seen
            if knock and waited_s >= knocks:
                self.type(knock)
                knocks += 1
            if select.select([self.descriptor], [], [], 0.1)[0]:
                seen += os.read(self.descriptor, 4096)
        return seen.decode("utf-8", "replace")

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def exit_code(self) -> int:
        self.status = self.status or os.waitpid(self.process_id, 0)
        return os.waitstatus_to_exitcode(self.status[1])

    def close(self) -> None:
        if self.status is None:
            os.kill(self.process_id, signal.SIGKILL)
            self.exit_code()
        os.close(self.descriptor)


@pytest.fixture(params=["C", "C.UTF-8"])
def terminal(bundle: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    terminal = Terminal(request.param, "chat", str(bundle), "--max-tokens", "3")
    yield terminal
    terminal.close()


def test_a_conversation_at_a_terminal(terminal: Terminal) -> None:
    assert "Chatting with tiny." in terminal.read_until("> ")
    terminal.type("নদী?\n")
    terminal.read_until("(--max-tokens reached)\r\n> ")
    terminal.type("/help\n")
    assert "/reset" in terminal.read_until("\r\n> ")
    # Python notices a Ctrl-C only once it waits for a key, which may be just after it shows the prompt.
    terminal.read_until("Ctrl-D or /quit leaves.\r\n> ", knock="\x03")
    terminal.type("a" * 200 + "\n")
    terminal.read_until("shorten it)\r\n> ")
    os.write(terminal.descriptor, b"\xff\n")
    terminal.read_until("UTF-8)\r\n> ")
    terminal.type("/reset\n")
    terminal.read_until("\r\n> ")
    terminal.type("\x04")
    assert terminal.exit_code() == 0

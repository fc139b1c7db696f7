"""A loss oracle: another program that moves its own parameters and answers with its loss, as JSON lines."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Self

from mothertongue_arbiter.errors import ArbiterError

TIME_LIMIT_SECONDS = 120.0  # for one answer
LONGEST_ANSWER_BYTES = 65_536
READ_BYTES = 65_536

Ranges = Mapping[str, Sequence[tuple[int, int]]]  # tensor -> runs of its elements, (first, end)


class OutOfTime(Exception):
    """The time of the whole audit is over."""


class LossOracle:
    """A running oracle process. Use it as a context manager; it ends with the block.

    A question is `{"seed": int, "steps": {"NAME": step, ...}}`: add step * sign to every element of the
    tensor NAME, answer `{"loss": number}`, and go back. No steps: the loss where it stands. The process has a
    group of its own, so that whatever it started ends with it.
    """

    def __init__(
        self,
        command: str,
        *,
        time_limit_seconds: float = TIME_LIMIT_SECONDS,
        audit_seconds: float | None = None,
    ) -> None:
        self.command = command
        self.time_limit_seconds = time_limit_seconds
        self.audit_seconds = audit_seconds
        self._buffer = b""

    def __enter__(self) -> Self:
        try:
            self._process = subprocess.Popen(
                shlex.split(self.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except (OSError, ValueError, IndexError) as error:
            raise ArbiterError(f"oracle {self.command!r}: cannot be started: {error}") from None
        self._end = time.monotonic() + self.audit_seconds if self.audit_seconds is not None else None
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of it is left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # what it had not read when it died
                pipe.close()

    def loss(self, seed: int, steps: Mapping[str, float], only: Ranges | None = None) -> float:
        """Return the loss with the parameters moved; of a tensor in `only`, just these elements.

        Raises:
            ArbiterError: it died, took too long, or answered something else than a number.
            OutOfTime: `audit_seconds` are over.
        """
        answer = self._answer(seed, steps, only or {})
        if "error" in answer:
            raise ArbiterError(f"oracle: cannot answer: {_shown(str(answer['error']).encode())}")
        if only and answer.get("only") is not True:
            raise ArbiterError('oracle: moved whole tensors; "only" needs an answer with "only": true')
        loss = answer.get("loss")
        if isinstance(loss, bool) or not isinstance(loss, int | float):
            raise self._nonsense(json.dumps(answer).encode())
        try:
            return float(loss)
        except OverflowError:  # an integer beyond float64
            raise self._nonsense(json.dumps(answer).encode()) from None

    def knows_only(self) -> bool:
        """Return whether it can move a part of a tensor; asked with a question that moves nothing."""
        return self._answer(0, {}, {}, probe=True).get("only") is True

    def _answer(
        self, seed: int, steps: Mapping[str, float], only: Ranges, *, probe: bool = False
    ) -> dict[str, Any]:
        question: dict[str, Any] = {"seed": seed, "steps": dict(steps)}
        if only or probe:
            question["only"] = {name: [list(run) for run in runs] for name, runs in only.items()}
        line = self._exchange(json.dumps(question).encode() + b"\n")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            raise self._nonsense(line) from None
        if not isinstance(answer, dict):
            raise self._nonsense(line)
        return answer

    def _exchange(self, question: bytes) -> bytes:
        """Write `question` and return the next line; neither side waits for the other to read."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        limit = time.monotonic() + self.time_limit_seconds
        end = limit if self._end is None else min(limit, self._end)
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if selector.select(0):
                self._read(stdout)
            if self._buffer:
                raise ArbiterError(
                    f"oracle: {_shown(self._buffer)} without a question; one line for each is expected, "
                    "anything else belongs to standard error"
                )
            selector.register(stdin, selectors.EVENT_WRITE)
            while question or b"\n" not in self._buffer:
                left = end - time.monotonic()
                ready = selector.select(left) if left > 0 else []
                if not ready:
                    if end != limit:
                        raise OutOfTime
                    late = f"no answer within {self.time_limit_seconds:g} s (--oracle-seconds)"
                    raise ArbiterError(f"oracle: {late}")
                for key, _ in ready:
                    if key.fileobj is stdout:
                        self._read(stdout)
                        continue
                    question = question[self._write(stdin, question) :]
                    if not question:
                        selector.unregister(stdin)
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _write(self, stdin: IO[bytes], question: bytes) -> int:
        try:
            return os.write(stdin.fileno(), question)
        except BlockingIOError:
            return 0
        except OSError:
            raise self._died() from None

    def _read(self, stdout: IO[bytes]) -> None:
        part = os.read(stdout.fileno(), READ_BYTES)
        if not part:
            raise self._died()
        self._buffer += part
        if len(self._buffer) > LONGEST_ANSWER_BYTES:
            raise ArbiterError(f"oracle: an answer of more than {LONGEST_ANSWER_BYTES} bytes")

    def _died(self) -> ArbiterError:
        try:
            code: Any = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            code = "none; it closed its pipe"
        return ArbiterError(f"oracle {self.command!r}: ended without an answer (exit code {code})")

    def _nonsense(self, line: bytes) -> ArbiterError:
        return ArbiterError(f'oracle: {_shown(line)} answered, {{"loss": number}} expected')


def _shown(line: bytes) -> str:
    return repr(line[:80].decode("utf-8", errors="replace"))

"""A loss oracle: another program that moves its own parameters and answers with its loss, as JSON lines."""

from __future__ import annotations

import contextlib
import json
import selectors
import shlex
import subprocess
import time
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Any, Self

from mothertongue_arbiter.errors import ArbiterError

TIME_LIMIT_SECONDS = 120.0  # for one answer
LONGEST_ANSWER_BYTES = 65_536


class LossOracle:
    """A running oracle process. Use it as a context manager; it ends with the block.

    A question is `{"seed": int, "steps": {"NAME": step, ...}}`: add step * sign to every element of the
    tensor NAME, answer `{"loss": number}`, and go back. No steps: the loss where it stands.
    """

    def __init__(self, command: str, *, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> None:
        self.command = command
        self.time_limit_seconds = time_limit_seconds
        self._buffer = b""

    def __enter__(self) -> Self:
        try:
            self._process = subprocess.Popen(
                shlex.split(self.command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except (OSError, ValueError, IndexError) as error:
            raise ArbiterError(f"oracle {self.command!r}: cannot be started: {error}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what it had not read when it died
                pipe.close()

    def loss(self, seed: int, steps: Mapping[str, float]) -> float:
        """Return the loss with the parameters moved.

        Raises:
            ArbiterError: it died, took too long, or answered something else than a number.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps({"seed": seed, "steps": dict(steps)}).encode() + b"\n")
            stdin.flush()
        except OSError:
            raise self._died() from None
        line = self._line(stdout)
        try:
            answer = json.loads(line)
            loss = answer["loss"]
            if isinstance(loss, bool) or not isinstance(loss, int | float):
                raise TypeError
        except (ValueError, KeyError, TypeError):
            shown = line[:80].decode("utf-8", errors="replace")
            raise ArbiterError(f'oracle: {shown!r} answered, {{"loss": number}} expected') from None
        return float(loss)

    def _line(self, stdout: IO[bytes]) -> bytes:
        deadline = time.monotonic() + self.time_limit_seconds
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise ArbiterError(f"oracle: no answer within {self.time_limit_seconds:g} s")
                part = stdout.read1(LONGEST_ANSWER_BYTES)  # type: ignore[attr-defined]
                if not part:
                    raise self._died()
                self._buffer += part
                if len(self._buffer) > LONGEST_ANSWER_BYTES:
                    raise ArbiterError(f"oracle: an answer of more than {LONGEST_ANSWER_BYTES} bytes")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _died(self) -> ArbiterError:
        try:
            code: Any = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            code = "none; it closed its pipe"
        return ArbiterError(f"oracle {self.command!r}: ended without an answer (exit code {code})")

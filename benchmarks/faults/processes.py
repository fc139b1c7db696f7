"""Many answers, each from a process of its own: one that hangs, crashes or exits costs only itself."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

GRACE_SECONDS = 5  # between the end of a pipe and that of its process


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Why there is no answer."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class _Asked:
    question: Any
    process: BaseProcess
    until: float  # of time.monotonic


def answered(
    ask: Callable[[Any], Any],
    questions: Sequence[Any],
    *,
    jobs: int,
    limit_seconds: float,
    preload: Sequence[str] = (),
) -> Iterator[tuple[Any, Any]]:
    """Yield (question, `ask(question)` or Failed) as answers come; `jobs` processes at a time.

    Each is a fork of one server that has imported `preload` and asked nothing, so that no answer depends
    on an earlier one.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    waiting, running = list(questions), dict[Connection, _Asked]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                question = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_answer, args=(sender, ask, question))
                process.start()
                sender.close()
                until = time.monotonic() + limit_seconds
                running[receiver] = _Asked(question=question, process=process, until=until)
            left = min(asked.until for asked in running.values()) - time.monotonic()
            ready = wait(list(running), timeout=max(left, 0.0))
            late = [one for one, asked in running.items() if asked.until <= time.monotonic()]
            for receiver in {*ready, *late}:
                asked = running.pop(receiver)
                yield asked.question, _received(receiver, asked, limit_seconds)
    finally:
        for asked in running.values():
            _end(asked.process)


def _answer(sender: Connection, ask: Callable[[Any], Any], question: Any) -> None:
    try:
        answer = ask(question)
    except Exception as error:
        answer = Failed(reason=f"{type(error).__name__}: {str(error)[:200]}")
    sender.send(answer)


def _received(receiver: Connection, asked: _Asked, limit_seconds: float) -> Any:
    try:
        if receiver.poll():
            return receiver.recv()
        return Failed(reason=f"no answer within {limit_seconds:g} s")
    except EOFError:
        asked.process.join(GRACE_SECONDS)
        return Failed(reason=f"the process ended without an answer, exit code {asked.process.exitcode}")
    finally:
        receiver.close()
        _end(asked.process)


def _end(process: BaseProcess) -> None:
    process.kill()  # it has nothing more to say, or said nothing in time
    process.join()
    process.close()

"""`mothertongue audit`: certify a training run, or one backward pass of any program."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mothertongue_arbiter.certificate import Certificate
    from mothertongue_arbiter.run import TrainingRun

PAGE_COLUMNS = 160  # in a file or a pipe, where nothing says how wide the page is
EXIT_CODES = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}
STALE = 1  # a certificate that no longer holds is a check that failed
TERMINATED = 143  # what shells expect of a program that SIGTERM ended

path_type = click.Path(path_type=Path)


class BadInput(click.ClickException):
    """What was handed over cannot be audited: one line, exit code 2."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was typed."""

    target: str
    is_function: bool
    is_model: bool
    text: Path | None
    oracle: str | None
    oracle_seconds: float
    time_limit: float
    step: int
    out: Path | None
    as_json: bool

    @property
    def is_frame(self) -> bool:
        return self.target.endswith(".safetensors") and not (self.is_function or self.is_model)

    @property
    def modules(self) -> tuple[str, ...]:
        """The module of FILE.py:FUNCTION, as `target` names it."""
        return (Path(self.target.rpartition(":")[0]).stem,) if self.is_function else ()


@click.command(short_help="Certify that a training run is sound.")
@click.argument("target", metavar="TARGET")
@click.option(
    "--run", "is_function", is_flag=True, help="TARGET is FILE.py:FUNCTION, which returns a TrainingRun."
)
@click.option("--hf", "is_model", is_flag=True, help="TARGET is a Hugging Face model folder or config.json.")
@click.option(
    "--text", type=path_type, help="With --hf: text to audit on, where a tokenizer is in the folder."
)
@click.option("--oracle", metavar="COMMAND", help="A program that answers with the loss, for a frame.")
@click.option("--oracle-seconds", default=120.0, show_default=True, help="Longest wait for one answer of it.")
@click.option(
    "--time-limit", default=600.0, show_default=True, help="Seconds for all checks; half of it for one."
)
@click.option("--step", default=0, show_default=True, help="Optimizer step to audit.")
@click.option(
    "--out", type=path_type, help="Write the certificate to this .json file, a page of text beside it."
)
@click.option("--check", "old", type=path_type, help="Say whether this certificate still holds for TARGET.")
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as one JSON object.")
def audit(old: Path | None, **typed: Any) -> None:
    """Certify that a training run is sound, before its loss curve looks fine anyway.

    TARGET is a recipe (.toml), a frame of any program (.safetensors, with --oracle), with --hf a model of
    transformers, or, with --run, FILE.py:FUNCTION. Exit code 0: all checks passed; 1: one failed; 2: bad
    input; 3: one was inconclusive.
    """
    from mothertongue_arbiter.errors import ArbiterError

    request = Request(**typed)
    _check_request(request, old)
    try:
        if old is not None:
            sys.exit(_compare(request, old))
        with _bar(silent=request.as_json) as begins:
            certificate = (_of_frame if request.is_frame else _of_run)(request, begins)
        code = _conclude(request, certificate)
    except ArbiterError as error:
        raise BadInput(str(error)) from error
    sys.exit(code)


def _check_request(request: Request, old: Path | None) -> None:
    """Refuse options that contradict each other, before anything takes time."""
    if request.is_function and request.is_model:
        raise BadInput("--run and --hf: TARGET is one or the other")
    if request.text is not None and not request.is_model:
        raise BadInput("--text: only with --hf, whose tokenizer reads it")
    if request.oracle is not None and not request.is_frame:
        raise BadInput("--oracle: only with a frame, TARGET.safetensors")
    if old is not None and request.is_frame:
        raise BadInput("--check: a frame is one moment of a program; audit it again instead")
    if not (request.time_limit > 0 and request.oracle_seconds > 0):
        raise BadInput("--time-limit and --oracle-seconds: more than 0 seconds expected")
    if request.out is not None and (request.out.suffix == ".txt" or request.out.is_dir()):
        raise BadInput(f"{request.out}: --out needs a .json file; the page of text takes its name with .txt")


def _of_frame(request: Request, begins: Callable[[str], None]) -> Certificate:
    from mothertongue_arbiter.frame import read_frame
    from mothertongue_arbiter.oracle import LossOracle
    from mothertongue_arbiter.testimony import audit_frame

    frame = read_frame(Path(request.target))
    if request.oracle is None:
        return audit_frame(frame, progress=begins)
    oracle = LossOracle(
        request.oracle, time_limit_seconds=request.oracle_seconds, audit_seconds=request.time_limit
    )
    with _terminable(), oracle:
        return audit_frame(frame, oracle, progress=begins)


def _of_run(request: Request, begins: Callable[[str], None]) -> Certificate:
    from mothertongue_arbiter.audit import audit as certify
    from mothertongue_arbiter.audit import chosen_options
    from mothertongue_arbiter.watchdog import Watchdog

    def expired(certificate: Certificate) -> None:
        """The main thread hangs, so nothing but this thread can speak and end the program."""
        code = BadInput.exit_code
        try:
            code = _conclude(request, certificate)
        except click.ClickException as error:
            error.show()
        finally:
            for child in multiprocessing.active_children():
                child.kill()
            sys.stdout.flush()
            os._exit(code)

    def noted(name: str) -> None:
        watchdog.begins(name)
        begins(name)

    with Watchdog(request.time_limit, step=request.step, expired=expired) as watchdog:
        noted("reading the run")
        run = _run(request)
        watchdog.opened(run)
        noted("first batch and loss")
        options = replace(
            chosen_options(run), progress=noted, answered=watchdog.answered, modules=request.modules
        )
        return certify(run, step=_step(request), options=options)


def _run(request: Request) -> TrainingRun:
    from mothertongue_arbiter.target import run_from_file, run_from_function, run_from_model

    if request.is_model:
        return run_from_model(Path(request.target), request.text)
    return run_from_function(request.target) if request.is_function else run_from_file(Path(request.target))


def _step(request: Request) -> int:
    """Return the step to audit; a model that brings its weights is past its first one."""
    if not request.is_model:
        return request.step
    from mothertongue_arbiter.torch.causal_lm import is_trained

    return max(request.step, int(is_trained(Path(request.target))))


def _compare(request: Request, path: Path) -> int:
    """Say what has changed since the certificate in `path` was issued; return the exit code."""
    from mothertongue_arbiter.certificate import Certificate

    certificate = Certificate.read(path)
    run = _run(request)
    from mothertongue_arbiter.torch.run.scope import scope_of

    changed = certificate.staleness(scope_of(run, request.modules))
    if request.as_json:
        print(json.dumps({"verdict": certificate.verdict, "stale": bool(changed), "changed": changed}))
    elif changed:
        print(f"{path}: stale ({', '.join(changed)}); audit again")
    else:
        print(f"{path}: holds, {certificate.verdict} at step {certificate.step}")
    return STALE if changed else EXIT_CODES[certificate.verdict]


def _conclude(request: Request, certificate: Certificate) -> int:
    """Write and show the certificate; return the exit code."""
    if request.out is not None:
        try:
            certificate.write(request.out)
        except OSError as error:
            raise BadInput(f"{request.out}: {error.strerror}; the certificate was not written") from error
    if request.as_json:
        print(json.dumps(certificate.as_dict(), ensure_ascii=False))
        return EXIT_CODES[certificate.verdict]
    from rich.console import Console

    from mothertongue_arbiter.view import page

    console = Console()
    if not console.is_terminal:
        console.width = PAGE_COLUMNS
    console.print(page(certificate, columns=console.width))
    return EXIT_CODES[certificate.verdict]


@contextmanager
def _terminable() -> Iterator[None]:
    """Have SIGTERM leave by the normal way out, which ends the oracle as well."""
    before = None
    with contextlib.suppress(ValueError):  # not in the main thread
        before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(TERMINATED))
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _bar(*, silent: bool) -> Iterator[Callable[[str], None]]:
    """Show on stderr which check is running, and for how long; nothing when stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("audit: {task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=silent or not console.is_terminal,
    ) as bar:
        task = bar.add_task("reading", total=None)  # how many checks the run allows is not known before
        yield lambda name: bar.update(task, description=name)

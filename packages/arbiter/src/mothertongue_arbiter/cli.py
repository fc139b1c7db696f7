"""`mothertongue audit`: certify a training run, or one backward pass of any program."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from mothertongue_arbiter.certificate import Certificate

PAGE_COLUMNS = 160  # in a file or a pipe, where nothing says how wide the page is
EXIT_CODES = {"PASS": 0, "FAIL": 1, "INCONCLUSIVE": 3}


class BadInput(click.ClickException):
    """What was handed over cannot be audited: one line, exit code 2."""

    exit_code = 2


@click.command(short_help="Certify that a training run is sound.")
@click.argument("target", metavar="TARGET")
@click.option(
    "--run", "is_function", is_flag=True, help="TARGET is FILE.py:FUNCTION, which returns a TrainingRun."
)
@click.option("--oracle", metavar="COMMAND", help="A program that answers with the loss, for a frame.")
@click.option("--oracle-seconds", default=120.0, show_default=True, help="Longest wait for one answer of it.")
@click.option("--step", default=0, show_default=True, help="Optimizer step to audit.")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the certificate to this file."
)
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as one JSON object.")
def audit(
    target: str,
    is_function: bool,
    oracle: str | None,
    oracle_seconds: float,
    step: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Certify that a training run is sound, before its loss curve looks fine anyway.

    TARGET is a recipe (.toml), a frame of any program (.safetensors, with --oracle), or, with --run,
    FILE.py:FUNCTION. Exit code 0: all checks passed; 1: one failed; 3: one was inconclusive.
    """
    from mothertongue_arbiter.errors import ArbiterError

    try:
        with _progress(silent=as_json) as progress:
            if target.endswith(".safetensors") and not is_function:
                certificate = _of_frame(Path(target), oracle, oracle_seconds, progress)
            else:
                certificate = _of_run(target, is_function, step, progress)
    except ArbiterError as error:
        raise BadInput(str(error)) from error
    if out is not None:
        certificate.write(out)
    _show(certificate, as_json)
    sys.exit(EXIT_CODES[certificate.verdict])


def _of_frame(
    path: Path, command: str | None, seconds: float, progress: Callable[[str], None]
) -> Certificate:
    from mothertongue_arbiter.frame import read_frame
    from mothertongue_arbiter.oracle import LossOracle
    from mothertongue_arbiter.testimony import audit_frame

    frame = read_frame(path)
    if command is None:
        return audit_frame(frame, progress=progress)
    with LossOracle(command, time_limit_seconds=seconds) as oracle:
        return audit_frame(frame, oracle, progress=progress)


def _of_run(target: str, is_function: bool, step: int, progress: Callable[[str], None]) -> Certificate:
    from mothertongue_arbiter.audit import audit as certify
    from mothertongue_arbiter.audit import chosen_options
    from mothertongue_arbiter.target import run_from_file, run_from_function

    progress("reading the run")
    run = run_from_function(target) if is_function else run_from_file(Path(target))
    return certify(run, step=step, options=replace(chosen_options(run), progress=progress))


def _show(certificate: Certificate, as_json: bool) -> None:
    if as_json:
        print(json.dumps(certificate.as_dict(), ensure_ascii=False))
        return
    from rich.console import Console

    from mothertongue_arbiter.view import page

    console = Console()
    if not console.is_terminal:
        console.width = PAGE_COLUMNS
    console.print(page(certificate))


@contextmanager
def _progress(*, silent: bool) -> Iterator[Callable[[str], None]]:
    """Show on stderr which check is running; nothing when stderr is no terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if silent or not console.is_terminal:
        yield lambda name: None
        return
    with console.status("audit") as status:
        yield lambda name: status.update(f"audit: {name}")

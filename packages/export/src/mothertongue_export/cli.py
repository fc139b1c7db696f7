"""The commands of the export package: `export`, `verify` and `build`.

Only click and the standard library are imported at the top, so that `mothertongue --help` stays fast.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from rich.table import Table

    from mothertongue_export.parity import ParityReport

json_option = click.option("--json", "as_json", is_flag=True, help="Print the proof as one JSON object.")


@click.command(short_help="Write the int8 bundle and prove it equal.")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), metavar="DIR", help="Default: the newest of the run."
)
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Default: bundles/NAME.")
@click.option(
    "--weights", type=click.Choice(["int8", "int4", "fp32"]), help="Default: as RECIPE says, else int8."
)
@click.option("--keep-reference", is_flag=True, help="Keep the plain fp32 ONNX graph too, in reference/.")
@click.option(
    "--formats", default="bundle", metavar="LIST", help="Of bundle, hf, gguf, with commas; default: bundle."
)
@json_option
def export(
    recipe: Path,
    checkpoint: Path | None,
    out: Path | None,
    weights: Literal["int8", "int4", "fp32"] | None,
    keep_reference: bool,
    formats: str,
    as_json: bool,
) -> None:
    """Turn the model of RECIPE into a bundle, and prove that it is the same model.

    A bundle that misses a gate is not written; one that was there before stays. Other formats go into folders
    beside it: bundles/NAME-hf for transformers, bundles/NAME-gguf for llama.cpp.
    """
    from mothertongue_export.exporter import export_run
    from mothertongue_export.formats import BUNDLE, chosen_formats, plan_homes, write_home
    from mothertongue_trainer.checkpoint import newest_checkpoint
    from mothertongue_trainer.lock import run_lock
    from mothertongue_trainer.progress import progress_bar
    from mothertongue_trainer.recipe import read_recipe

    chosen = chosen_formats(formats)
    others = [name for name in chosen if name != BUNDLE]
    if BUNDLE not in chosen and (weights or keep_reference):
        raise click.UsageError("--weights and --keep-reference are of the bundle; add it to --formats")
    settings = read_recipe(recipe)
    bundle = out or settings.bundle_folder
    source = checkpoint or newest_checkpoint(settings.run_folder)
    report = None
    with run_lock(settings.run_folder), failure_as_json(as_json), progress_bar(quiet=as_json) as progress:
        plans = plan_homes(source, bundle, others)
        if BUNDLE in chosen:
            report = export_run(
                settings,
                checkpoint=source,
                bundle=bundle,
                weights=weights,
                keep_reference=keep_reference,
                progress=progress,
            )
        homes = [write_home(plan, progress=progress) for plan in plans]
    if as_json:
        written = {"formats": {home.format: home.as_dict() for home in homes}} if homes else {}
        click.echo(json.dumps((report.as_dict() if report else {}) | written, ensure_ascii=False))
        return
    if report:
        print_proof(report)
        click.echo(f"Exported and proved: {bundle}")
    for home in homes:
        click.echo(f"Exported and read back: {home.folder}")
        for name, record in home.files.items():
            click.echo(f"  {record.sha256}  {name}")


@click.command(short_help="Prove BUNDLE again on this machine.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Run the whole proof against this checkpoint of a run folder, on the run's held-out text.",
)
@json_option
def verify(bundle: Path, checkpoint: Path | None, as_json: bool) -> None:
    """Prove BUNDLE again on this machine: every byte, the graph, and a stored golden set; takes a second."""
    from mothertongue_export.chats import run_conversations
    from mothertongue_export.verification import verify as verify_bundle
    from mothertongue_trainer.document import read_documents
    from mothertongue_trainer.progress import progress_bar

    heldout, conversations = [], []
    if checkpoint:  # runs/NAME/checkpoints/step-NNNNNN
        corpus = checkpoint.resolve().parents[1] / "corpus"
        heldout, conversations = list(read_documents(corpus / "heldout.jsonl")), run_conversations(corpus)
    with failure_as_json(as_json), progress_bar(quiet=as_json) as progress:
        result = verify_bundle(
            bundle, checkpoint=checkpoint, heldout=heldout, conversations=conversations, progress=progress
        )
    if as_json:
        parity = result.report.as_dict() if result.report else None
        found = {
            "verdict": "PASS",
            "files": len(result.manifest.files),
            "golden_tokens": result.golden_tokens,
        }
        click.echo(json.dumps(found | {"parity": parity}, ensure_ascii=False))
        return
    if result.report:
        print_proof(result.report)
    click.echo(
        f"{bundle}: sound. {len(result.manifest.files)} files as they were proved; "
        f"{result.golden_tokens} golden tokens repeated on this machine."
    )


@contextlib.contextmanager
def failure_as_json(as_json: bool) -> Iterator[None]:
    """Print the figures of a failed proof too, if JSON is asked for; the error itself goes on."""
    from mothertongue_export.parity import ParityFailed

    try:
        yield
    except ParityFailed as error:
        if as_json:
            click.echo(json.dumps(error.report.as_dict(), ensure_ascii=False))
        raise


def print_proof(report: ParityReport) -> None:
    """Print the table of a proof."""
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "measured", "figure", "at most", box=None, title="The bundle against PyTorch", title_justify="left"
    )
    for row in report.rows():
        table.add_row(*row)
    console = Console()
    console.print(table)
    if report.choices:
        console.print(_storage_table(report))


def _storage_table(report: ParityReport) -> Table:
    from rich.table import Table

    from mothertongue_export.choice import rows

    table = Table("matrix", "stored (layers)", "error", "because of", box=None, title="How it is stored")
    table.title_justify = "left"
    for row in rows(report.choices):
        table.add_row(*row)
    return table


@click.command(short_help="Take RECIPE from text to a proved bundle.")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--until", metavar="STAGE", help="Stop after this stage; default: the last.")
@click.option("--chat", "then_chat", is_flag=True, help="Then chat with the bundle.")
@click.option("--despite-audit", is_flag=True, help="Train although the audit failed.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.pass_context
def build(
    ctx: click.Context,
    recipe: Path,
    until: str | None,
    then_chat: bool,
    despite_audit: bool,
    as_json: bool,
) -> None:
    """Take RECIPE from text to a proved bundle: every stage, but only where its inputs changed.

    An interrupted build continues where it was. Nothing is lost when a recipe changes: the checkpoints of the
    old one are set aside.
    """
    if then_chat and (as_json or until):
        raise click.UsageError("--chat goes with neither --json nor --until")

    from mothertongue_export.build import build_bundle
    from mothertongue_export.summary import read_summary, summary_tables
    from mothertongue_trainer.recipe import read_recipe
    from mothertongue_trainer.waiting import share_the_machine

    share_the_machine()
    settings = read_recipe(recipe)
    done = build_bundle(settings, until=until, despite_audit=despite_audit, quiet=as_json)
    summary = read_summary(settings, done)
    if as_json:
        click.echo(json.dumps(summary.as_dict(), ensure_ascii=False))
    else:
        from rich.console import Console

        console = Console()
        for table in summary_tables(summary):
            console.print(table)
    if then_chat:
        from mothertongue.cli import chat

        ctx.invoke(chat, bundle=settings.bundle_folder)

"""The trainer's commands: `prepare`, `tokenizer`, `train`, `evaluate`.

Only click and the standard library are imported at the top, so that `mothertongue --help` stays fast.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option(
    "--despite-audit", is_flag=True, help="Train although the audit failed; the checkpoint records it."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def train(recipe: Path, despite_audit: bool, as_json: bool) -> None:
    """Pretrain the model of RECIPE, after an audit; an interrupted run continues exactly.

    Ctrl-C finishes the step, saves and stops; the same command continues. A second Ctrl-C stops at once.
    """
    from mothertongue_trainer.display import TrainingDisplay
    from mothertongue_trainer.loop import train as train_run
    from mothertongue_trainer.recipe import read_recipe

    settings = read_recipe(recipe)
    with TrainingDisplay(quiet=as_json) as display:
        result = train_run(settings, settings.run_folder, despite_audit=despite_audit, progress=display)
    if as_json:
        click.echo(json.dumps(result.as_dict(), ensure_ascii=False))
    if not result.finished:
        click.echo(f"Stopped at step {result.step} and saved; the same command continues.", err=True)
        sys.exit(130)  # what shells expect of a program that Ctrl-C ended
    click.echo(f"Trained: {result.checkpoint}", err=True)

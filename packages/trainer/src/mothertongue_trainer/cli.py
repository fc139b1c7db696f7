"""The trainer's commands: `prepare`, `tokenizer`, `train`, `evaluate`.

Only click and the standard library are imported at the top, so that `mothertongue --help` stays fast.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

recipe_argument = click.argument("recipe", type=click.Path(path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")


@click.command(short_help="Gather and clean the text of RECIPE.")
@recipe_argument
@json_option
def prepare(recipe: Path, as_json: bool) -> None:
    """Gather the text of RECIPE: normalised, without repetitions, a part held out, counted."""
    from mothertongue_trainer.corpus import prepare_corpus
    from mothertongue_trainer.lock import run_lock
    from mothertongue_trainer.progress import progress_bar
    from mothertongue_trainer.recipe import read_recipe

    settings = read_recipe(recipe)
    with run_lock(settings.run_folder), progress_bar(quiet=as_json) as progress:
        manifest = prepare_corpus(settings, settings.run_folder, progress=progress)
    if as_json:
        click.echo(json.dumps(asdict(manifest), ensure_ascii=False))
        return
    click.echo(f"{'file':<24}{'documents':>12}{'characters':>14}")
    for name, count in manifest.files.items():
        click.echo(f"{name:<24}{count.documents:>12,}{count.characters:>14,}")
    for source in manifest.sources:
        click.echo(f"source: {source['name']}; licence: {source.get('licence', 'yours to know')}")


@click.command(short_help="Train a fair tokenizer; encode the text.")
@recipe_argument
@json_option
def tokenizer(recipe: Path, as_json: bool) -> None:
    """Train the tokenizer of RECIPE, show what each language costs, and encode the corpus.

    An unfair tokenizer is refused: see minimum_characters_per_token in the recipe.
    """
    from mothertongue_trainer.lock import run_lock
    from mothertongue_trainer.progress import progress_bar
    from mothertongue_trainer.recipe import read_recipe
    from mothertongue_trainer.tokens import encode_corpus
    from mothertongue_trainer.vocabulary import train_tokenizer

    settings = read_recipe(recipe)
    with run_lock(settings.run_folder), progress_bar(quiet=as_json) as progress:
        report = train_tokenizer(settings, settings.run_folder, progress=progress)
        tokens = encode_corpus(settings, settings.run_folder, progress=progress)
    if as_json:
        click.echo(json.dumps({**report.as_dict(), "tokens": tokens}, ensure_ascii=False))
        return
    click.echo(report.table())
    click.echo(f"{sum(tokens.values()):,} training tokens")


@click.command(short_help="Pretrain the model of RECIPE, audited.")
@recipe_argument
@click.option(
    "--despite-audit", is_flag=True, help="Train although the audit failed; the checkpoint records it."
)
@json_option
def train(recipe: Path, despite_audit: bool, as_json: bool) -> None:
    """Pretrain the model of RECIPE, after an audit; an interrupted run continues exactly.

    Ctrl-C finishes the step, saves and stops; the same command continues. A second Ctrl-C stops at once.
    """
    from mothertongue_trainer.waiting import share_the_machine

    share_the_machine()
    from mothertongue_trainer.display import TrainingDisplay
    from mothertongue_trainer.lock import run_lock
    from mothertongue_trainer.loop import train as train_run
    from mothertongue_trainer.recipe import read_recipe

    settings = read_recipe(recipe)
    with run_lock(settings.run_folder), TrainingDisplay(quiet=as_json) as display:
        result = train_run(settings, settings.run_folder, despite_audit=despite_audit, progress=display)
    if as_json:
        click.echo(json.dumps(result.as_dict(), ensure_ascii=False))
    if not result.finished:
        click.echo(f"Stopped at step {result.step} and saved; the same command continues.", err=True)
        sys.exit(130)  # what shells expect of a program that Ctrl-C ended
    click.echo(f"Trained: {result.checkpoint}", err=True)


@click.command(short_help="Measure the model on unseen text.")
@recipe_argument
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), metavar="DIR", help="Default: the newest of the run."
)
@json_option
def evaluate(recipe: Path, checkpoint: Path | None, as_json: bool) -> None:
    """Measure the model of RECIPE on held-out text, beside its untrained twin and a unigram model."""
    from mothertongue_trainer.checkpoint import newest_checkpoint
    from mothertongue_trainer.evaluation import evaluate as evaluate_model
    from mothertongue_trainer.lock import run_lock
    from mothertongue_trainer.progress import progress_bar
    from mothertongue_trainer.recipe import read_recipe

    settings = read_recipe(recipe)
    checkpoint = checkpoint or newest_checkpoint(settings.run_folder)
    with run_lock(settings.run_folder), progress_bar(quiet=as_json) as progress:
        evaluation = evaluate_model(settings, checkpoint, settings.run_folder, progress=progress)
    click.echo(json.dumps(evaluation.as_dict(), ensure_ascii=False) if as_json else evaluation.table())

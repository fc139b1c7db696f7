"""From a recipe to a proved bundle: the stages, in order, and what each one needs.

Everything heavy is imported where a stage runs, so that a build with nothing to do is over at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

import mothertongue
import mothertongue_export
import mothertongue_trainer
from mothertongue.errors import RecipeError
from mothertongue_trainer.files import matching_paths
from mothertongue_trainer.lock import run_lock
from mothertongue_trainer.progress import progress_bar
from mothertongue_trainer.recipe import Recipe
from mothertongue_trainer.stages import Stage, StageLog, State, fingerprints, run_stages

RUNTIME, TRAINER, EXPORT = (
    Path(package.__path__[0]) for package in (mothertongue, mothertongue_trainer, mothertongue_export)
)

# Of [training]: what decides when something is written, and nothing of the weights.
FREE_FIELDS = ("checkpoint_every_steps", "keep_checkpoints", "audit_again_after_steps")

# The source files whose change makes a stage run again.
CORPUS_CODE = (
    "corpus", "dictionary", "document", "entries", "everyday", "files", "holdout", "numerals", "package_data",
    "phrasings", "questions", "turns", "words",
)  # fmt: skip
TRAINING_CODE = ("arithmetic", "loop", "model", "optimizer", "plan", "rows", "schedule", "step")
EXPORT_CODE = (
    "bootstrap", "calibration", "chats", "checkpoint", "choice", "comparison", "compensation", "exporter",
    "fitting", "golden", "graph", "lint", "model_card", "operators", "oracle", "parity", "places", "proof",
    "pytorch", "quantization", "reference", "staging", "weights_file", "weights_lint",
)  # fmt: skip


def build_bundle(
    recipe: Recipe, *, until: str | None = None, despite_audit: bool = False, quiet: bool = False
) -> set[str]:
    """Run every stage of `recipe` whose inputs changed, up to `until`; return the names of all that are done.

    Raises:
        MothertongueError: a stage failed; those before it are done and stay.
    """
    stages = Builder(recipe=recipe, despite_audit=despite_audit, quiet=quiet).stages()
    names = [stage.name for stage in stages]
    if until is not None and until not in names:
        raise RecipeError(f"--until {until}: no such stage; this recipe has {', '.join(names)}")
    wanted = stages if until is None else stages[: names.index(until) + 1]

    def announce(stage: Stage, state: State) -> None:
        if state == "fresh" or quiet:
            return
        again = " (continues)" if state == "interrupted" else ""
        click.echo(f"{names.index(stage.name) + 1}/{len(names)} {stage.name}: {stage.does}{again}", err=True)

    with run_lock(recipe.run_folder):
        log = StageLog(recipe.run_folder)
        run_stages(wanted, log, announce=announce)
        return {stage.name for stage, print_ in fingerprints(stages) if log.state(stage, print_) == "fresh"}


@dataclass(frozen=True, kw_only=True)
class Builder:
    """Makes the stages of one recipe."""

    recipe: Recipe
    despite_audit: bool
    quiet: bool

    def stages(self) -> list[Stage]:
        """Return every stage from text to exam."""
        dictionary = self.recipe.corpus.dictionary
        stages = [*self._text_stages(), *self._model_stages()]
        return [*stages, self._exam_stage()] if dictionary and dictionary.chat else stages

    def _text_stages(self) -> Iterator[Stage]:
        corpus, run = self.recipe.corpus, self.recipe.run_folder
        own_data = sorted((TRAINER / "data").iterdir()) if corpus.dictionary else []
        yield Stage(
            name="corpus",
            does="reads the text, cleans it, holds out a part",
            settings=[asdict(corpus), self.recipe.seed],
            code=(*_code(TRAINER, CORPUS_CODE), *own_data),
            files=tuple(path for files in corpus.files for path in matching_paths(files)),
            output=run / "corpus" / "manifest.json",
            run=self._corpus,
        )
        yield Stage(
            name="tokenizer",
            does="learns the vocabulary, checks that every language is treated fairly",
            settings=[asdict(self.recipe.tokenizer), self.recipe.model.context],
            code=(*_code(TRAINER, ("vocabulary", "fairness")), *_code(RUNTIME, ("chat", "tokenizer"))),
            output=run / "tokenizer" / "tokenizer.json",
            run=self._tokenizer,
        )
        yield Stage(
            name="tokens",
            does="encodes the text",
            settings=None,
            code=_code(TRAINER, ("tokens", "shards")),
            output=run / "tokens",
            run=self._tokens,
        )

    def _model_stages(self) -> Iterator[Stage]:
        recipe, run = self.recipe, self.recipe.run_folder
        settings = recipe.as_dict()
        training = {key: value for key, value in settings["training"].items() if key not in FREE_FIELDS}
        yield Stage(
            name="train",
            does="audits the run, then trains it",
            settings=[training, settings["model"], settings["optimizer"], recipe.seed],
            code=_code(TRAINER, TRAINING_CODE),
            output=run / "checkpoints",
            keep=True,
            run=self._train,
        )
        yield Stage(
            name="evaluate",
            does="measures bits per byte on text that was never seen",
            settings=asdict(recipe.evaluation),
            code=_code(TRAINER, ("evaluation",)),
            output=run / "evaluation.json",
            run=self._evaluate,
        )
        yield Stage(
            name="export",
            does="writes the int8 bundle and proves that it is the same model",
            settings=asdict(recipe.export),
            code=(*_code(EXPORT, EXPORT_CODE), *_code(RUNTIME, ("bundle",))),
            output=recipe.bundle_folder / "manifest.json",
            run=self._export,
        )

    def _exam_stage(self) -> Stage:
        return Stage(
            name="exam",
            does="asks the int8 bundle what the model was taught, and what it was not",
            settings=self.recipe.evaluation.chat_questions,
            code=(*_code(TRAINER, ("exam",)), *_code(RUNTIME, ("generate", "sampling", "session"))),
            output=self.recipe.run_folder / "exam.json",
            run=self._exam,
        )

    def _corpus(self) -> None:
        from mothertongue_trainer.corpus import prepare_corpus

        with progress_bar(quiet=self.quiet) as progress:
            prepare_corpus(self.recipe, self.recipe.run_folder, progress=progress)

    def _tokenizer(self) -> None:
        from mothertongue_trainer.vocabulary import train_tokenizer

        with progress_bar(quiet=self.quiet) as progress:
            train_tokenizer(self.recipe, self.recipe.run_folder, progress=progress)

    def _tokens(self) -> None:
        from mothertongue_trainer.tokens import encode_corpus

        with progress_bar(quiet=self.quiet) as progress:
            encode_corpus(self.recipe, self.recipe.run_folder, progress=progress)

    def _train(self) -> None:
        from mothertongue_trainer.display import TrainingDisplay
        from mothertongue_trainer.loop import train

        folder, despite_audit = self.recipe.run_folder, self.despite_audit
        with TrainingDisplay(quiet=self.quiet) as display:
            result = train(self.recipe, folder, despite_audit=despite_audit, progress=display)
        if not result.finished:
            click.echo(f"Saved at step {result.step:,}; the same command continues.", err=True)
            raise KeyboardInterrupt

    def _evaluate(self) -> None:
        from mothertongue_trainer.checkpoint import newest_checkpoint
        from mothertongue_trainer.evaluation import evaluate

        with progress_bar(quiet=self.quiet) as progress:
            evaluate(
                self.recipe,
                newest_checkpoint(self.recipe.run_folder),
                self.recipe.run_folder,
                progress=progress,
            )

    def _export(self) -> None:
        from mothertongue_export.exporter import export_run

        with progress_bar(quiet=self.quiet) as progress:
            export_run(self.recipe, progress=progress)

    def _exam(self) -> None:
        from mothertongue_trainer.exam import take_exam

        with progress_bar(quiet=self.quiet) as progress:
            take_exam(self.recipe, self.recipe.run_folder, progress=progress)


def _code(package: Path, modules: Iterable[str]) -> tuple[Path, ...]:
    return tuple(package / f"{module}.py" for module in modules)

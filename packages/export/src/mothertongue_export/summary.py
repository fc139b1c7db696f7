"""What a finished run is worth, on one screen: read from its files, drawn as tables."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mothertongue_trainer.recipe import Recipe
from mothertongue_trainer.stages import StageLog

if TYPE_CHECKING:
    from rich.table import Table

EXAM_SKILLS = {
    "english_percent": "word -> English",
    "bangla_percent": "English -> word",
    "definition_percent": "definition",
    "sentence_percent": "sentence with the word",
    "numbers_percent": "numbers 0 to 100",
    "everyday_percent": "everyday turns",
    "sums_seen_percent": "sums it was taught",
    "sums_unseen_percent": "sums it never saw",
    "unseen_phrasing_percent": "asked in words it never saw",
    "unknown_refused_percent": "unknown word: says so",
    "known_refused_percent": "known word: wrongly says so",
}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures of one run; a part is None until its stage has run."""

    name: str
    stages_s: dict[str, float]
    evaluation: dict[str, Any] | None
    certificate: dict[str, Any] | None
    parity: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_summary(recipe: Recipe, done: Collection[str]) -> Summary:
    """Return the figures of the stages that are `done`; those of an older model may lie beside them."""
    run = recipe.run_folder
    evaluation = _read(run / "evaluation.json") if "evaluate" in done else None
    if evaluation and "exam" not in done:
        evaluation.pop("chat", None)
    return Summary(
        name=recipe.name,
        stages_s={name: record.seconds for name, record in StageLog(run).records.items() if name in done},
        evaluation=evaluation,
        certificate=_read(run / "audit" / "certificate.json") if "train" in done else None,
        parity=_read(recipe.bundle_folder / "parity.json") if "export" in done else None,
    )


def summary_tables(summary: Summary) -> Iterator[Table]:
    """Yield one table for each part that is there."""
    if summary.evaluation:
        yield _quality(summary.evaluation)
    if summary.evaluation and "chat" in summary.evaluation:
        yield _exam(summary.evaluation["chat"])
    if summary.certificate or summary.parity:
        yield _proofs(summary.certificate, summary.parity)
    yield _times(summary.stages_s)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _table(title: str, *columns: str) -> Table:
    from rich import box  # deferred: a build with nothing to do must be over at once
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def _quality(evaluation: dict[str, Any]) -> Table:
    columns = (
        "language",
        "bits per byte",
        "random twin",
        "unigram",
        "nats per token",
        "characters per token",
    )
    table = _table("Held-out text", *columns)
    for language, quality in evaluation["languages"].items():
        others = [evaluation[model][language]["bits_per_byte"] for model in ("twin", "unigram")]
        figures = [quality["bits_per_byte"], *others, quality["nats_per_token"]]
        table.add_row(
            language, *(f"{value:.3f}" for value in figures), f"{quality['characters_per_token']:.2f}"
        )
    return table


def _exam(chat: dict[str, Any]) -> Table:
    table = _table("Asked through the int8 bundle, exact answers", "question", "percent")
    for key, label in EXAM_SKILLS.items():
        if chat.get(key) is not None:
            table.add_row(label, f"{chat[key]:.1f}")
    return table


def _proofs(certificate: dict[str, Any] | None, parity: dict[str, Any] | None) -> Table:
    table = _table("Proofs", "claim", "measured", "verdict")
    if certificate:
        seconds = sum(check["seconds"] for check in certificate["checks"])
        measured = (
            f"{len(certificate['checks'])} checks, {len(certificate['not_run'])} not run, {seconds:.0f} s"
        )
        table.add_row("the run trains what it claims (arbiter)", measured, certificate["verdict"])
    if parity:
        verdict = parity["verdict"]
        claim = "fp32 graph equals PyTorch"
        table.add_row(claim, f"largest logit difference {parity['reference_max_abs']:.1e}", verdict)
        claim = "int8 bundle is the same model"
        table.add_row(claim, f"KL {parity['kl_mean']:.2e} nats", verdict)
        table.add_row("", f"same first choice {parity['top1_agreement_percent']:.2f} %", "")
        table.add_row("", f"clear flips {parity['clear_flips_percent']:.2f} %", "")
        for language, text in parity["languages"].items():
            table.add_row("", f"{language} bits per byte {text['increase_percent']:+.3f} %", "")
    return table


def _times(stages_s: dict[str, float]) -> Table:
    table = _table("Time when it ran", "stage", "seconds")
    for name, seconds in stages_s.items():
        table.add_row(name, f"{seconds:.1f}")
    table.add_row("all", f"{sum(stages_s.values()):.1f}")
    return table

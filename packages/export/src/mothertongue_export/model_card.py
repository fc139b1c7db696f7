"""The model card: README.md of a bundle, with its proof and its honest limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mothertongue_export.checkpoint import Checkpoint
from mothertongue_export.choice import rows as choice_rows
from mothertongue_export.parity import ParityReport
from mothertongue_trainer.recipe import ExportConfig, Recipe

LIMITS = """\
- It knows what its text taught it and nothing else. It can be wrong, and says wrong things in the same tone.
- It was not tuned to be safe or polite; do not let it decide anything about people.
- The figures above hold for the held-out part of its own corpus, not for text of another kind.
- Proved on one processor. `mothertongue verify` repeats a stored golden set on yours."""


def model_card(
    name: str,
    checkpoint: Checkpoint,
    report: ParityReport,
    *,
    config: ExportConfig,
    recipe: Recipe | None,
    sources: Sequence[Mapping[str, Any]],
) -> str:
    """Return the card of the bundle `name` in Markdown; `sources` have a `name` and perhaps a `licence`."""
    sizes, languages = checkpoint.architecture, list(report.figures.languages)
    trained = (
        f" Trained on {recipe.training.tokens:,} tokens by the recipe `{recipe.name}`." if recipe else ""
    )
    texts = [f"- {source['name']}: {source.get('licence', 'licence not stated')}" for source in sources]
    return f"""\
---
library_name: mothertongue
language: [{", ".join(languages)}]
tags: [onnx, {config.weights}, on-device]
---

# {name}

A language model of {checkpoint.parameters / 1e6:,.2f} M parameters ({config.weights}), for a CPU:
{sizes.layers} layers of width {sizes.width}, a vocabulary of {sizes.vocabulary:,} tokens and a context of
{sizes.context:,}.{trained}

```sh
pip install mothertongue
mothertongue chat {name}
```

## Proof that this is the trained model

These files, run token by token by the runtime, beside the checkpoint in PyTorch (float32, no cache) on
{report.figures.tokens:,} tokens that it was not trained on. Verdict: **{report.verdict}**.

{proof_table(report)}
{storage_table(report)}
## Limits

{LIMITS}

## Text

{chr(10).join(texts) or "- Not stated."}

The text itself is not part of this bundle.
"""


def proof_table(report: ParityReport) -> str:
    """Return the proof as a Markdown table."""
    lines = [f"| {measure} | {figure} | {limit} |" for measure, figure, limit in report.rows()]
    return "\n".join(["| measured | figure | at most |", "|---|---:|---:|", *lines])


def storage_table(report: ParityReport) -> str:
    """Return how the matrices are stored as a Markdown section; empty if nothing was chosen."""
    if not report.choices:
        return ""
    lines = [f"| {' | '.join(row)} |" for row in choice_rows(report.choices)]
    head = ["| matrix | stored (layers) | error | because of |", "|---|---|---:|---|"]
    return "\n".join(["", "## Storage", "", *head, *lines, ""])

"""The proof of a bundle: read its files, run it beside PyTorch, judge it by the gates of its recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from mothertongue.session import Session
from mothertongue.tokenizer import Tokenizer
from mothertongue_export.checkpoint import Checkpoint
from mothertongue_export.comparison import measure, select_texts
from mothertongue_export.lint import lint, lint_weights
from mothertongue_export.parity import ParityReport, judge
from mothertongue_export.pytorch import PyTorchModel
from mothertongue_export.reference import reference_max_abs, write_reference
from mothertongue_trainer.document import Document
from mothertongue_trainer.progress import Progress
from mothertongue_trainer.recipe import ExportConfig

COPIED_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def prove(
    folder: Path,
    checkpoint: Checkpoint,
    *,
    heldout: Sequence[Document],
    config: ExportConfig,
    progress: Progress,
    reference: Path | None = None,
) -> ParityReport:
    """Return the proof that the bundle in `folder` is the model of `checkpoint`.

    The fp32 reference graph is written to the folder `reference`, or thrown away.

    Raises:
        DataError: the held-out documents hold no prose.
        BundleError: the graph does not load.
    """
    sizes = checkpoint.architecture
    findings = [
        *_copy_findings(folder, checkpoint.folder),
        *lint(folder, tied=sizes.tied_embeddings),
        *lint_weights(folder, checkpoint),
    ]
    texts = select_texts(heldout, Tokenizer.open(folder), context=sizes.context)
    progress("Comparing the fp32 graph with PyTorch", 0, None)
    model = PyTorchModel.open(checkpoint.folder)
    with TemporaryDirectory() as temporary:
        path = write_reference(checkpoint, reference or Path(temporary))
        difference = reference_max_abs(model, path, sizes)
    session = Session.open(folder)
    figures = measure(session, model, texts, reference_max_abs=difference, progress=progress)
    return judge(figures, findings, config)


def _copy_findings(folder: Path, checkpoint: Path) -> Iterator[str]:
    """Yield each file that a bundle copies from its checkpoint and that is another one here."""
    for name in COPIED_FILES:
        if (folder / name).read_bytes() != (checkpoint / name).read_bytes():
            yield f"{name}: differs from the one in {checkpoint}"

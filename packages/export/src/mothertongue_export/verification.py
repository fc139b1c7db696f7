"""Prove an existing bundle again: in a second on any machine, or in full beside its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mothertongue.bundle import CONFIG_FILE, MANIFEST_FILE, Manifest
from mothertongue.bundle import verify as verify_files
from mothertongue.errors import BundleError, CheckFailed
from mothertongue.golden import golden_findings, read_golden
from mothertongue.session import Session
from mothertongue_export.checkpoint import read_architecture, read_checkpoint
from mothertongue_export.lint import declared_in, lint
from mothertongue_export.oracle import open_oracle
from mothertongue_export.parity import ParityFailed, ParityReport
from mothertongue_export.proof import prove
from mothertongue_trainer.document import Document
from mothertongue_trainer.progress import Progress, silent
from mothertongue_trainer.recipe import ExportConfig
from mothertongue_trainer.settings import read_settings


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What was found to be in order."""

    manifest: Manifest
    golden_tokens: int  # that this machine wrote as they were proved
    report: ParityReport | None  # with a checkpoint


def verify(
    bundle: Path,
    *,
    checkpoint: Path | None = None,
    heldout: Sequence[Document] = (),
    conversations: Sequence[Document] = (),
    progress: Progress = silent,
) -> Verification:
    """Return what is in order with the bundle; with its checkpoint and held-out text, the whole proof.

    Without a checkpoint: every byte against the manifest, the format, the graph's lint, and the golden set
    on this machine. The gates are those of the recipe in the manifest.

    Raises:
        BundleError: the bundle is incomplete or altered, or its graph is not as export leaves it.
        CheckFailed: this machine computes another model.
        ParityFailed: the bundle is not the model of the checkpoint.
        CheckpointError, DataError: the checkpoint or the text cannot be used.
    """
    progress("Checking every byte", 0, None)
    manifest = verify_files(bundle)
    config = _gates(manifest, bundle)
    tied = read_architecture(bundle / CONFIG_FILE).tied_embeddings
    if findings := lint(bundle, tied=tied, weights=config.weights, declared=declared_in(bundle)):
        raise BundleError(f"{bundle}: {findings[0]}; export the bundle again")
    progress("Running the golden set", 0, None)
    golden = read_golden(bundle)
    if findings := golden_findings(golden, Session.open(bundle)):
        raise CheckFailed(f"{bundle}: {findings[0]}")
    report = None
    if checkpoint:
        with open_oracle(
            read_checkpoint(checkpoint), heldout=heldout, conversations=conversations, progress=progress
        ) as oracle:
            declared = declared_in(bundle)
            report = prove(bundle, oracle, config=config, declared=declared, progress=progress)
        if report.failures:
            message = f"{bundle}: not the model of {checkpoint}; {'; '.join(report.failures)}"
            raise ParityFailed(message, report)
    return Verification(
        manifest=manifest, golden_tokens=sum(len(text.greedy_ids) for text in golden), report=report
    )


def _gates(manifest: Manifest, bundle: Path) -> ExportConfig:
    """Return the gates of the recipe that the bundle was exported with."""
    problems: list[str] = []
    stored = manifest.recipe.get("export", {})
    config = read_settings(ExportConfig, stored, place="recipe.export", problems=problems)
    if problems:
        raise BundleError(f"{bundle / MANIFEST_FILE}: {problems[0]}; export the bundle again")
    return config

"""Export: checkpoint -> int8 bundle, which appears whole and proved, or not at all.

Everything is written into a hidden folder beside the target. Only when the proof has passed and every file is
listed in the manifest does that folder take the bundle's name. Until then an older bundle stays as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mothertongue.bundle import MANIFEST_FILE, PARITY_FILE, write_manifest
from mothertongue.bundle import verify as verify_files
from mothertongue.errors import BundleError, CheckpointError, RecipeError
from mothertongue.session import Session
from mothertongue.tokenizer import Tokenizer
from mothertongue_export.checkpoint import Architecture, Checkpoint, read_checkpoint
from mothertongue_export.golden import write_golden
from mothertongue_export.graph import GRAPH_FILE, write_device_graph
from mothertongue_export.lint import quantization_table
from mothertongue_export.model_card import model_card
from mothertongue_export.parity import ParityFailed, ParityReport
from mothertongue_export.proof import COPIED_FILES, prove
from mothertongue_export.quantization import BLOCK_SIZES
from mothertongue_trainer.checkpoint import newest_checkpoint
from mothertongue_trainer.corpus import read_manifest
from mothertongue_trainer.document import Document, read_documents
from mothertongue_trainer.progress import Progress, silent
from mothertongue_trainer.recipe import ExportConfig, Recipe

MINIMUM_ONNXRUNTIME = "1.23"  # the first with 8-bit MatMulNBits kernels for x86-64 and ARM64
GENAI_CONFIG_FILE = "genai_config.json"
CARD_FILE = "README.md"
REFERENCE_FOLDER = "reference"


def export(
    checkpoint: Path,
    bundle: Path,
    *,
    config: ExportConfig,
    heldout: Sequence[Document],
    recipe: Recipe | None = None,
    sources: Sequence[Mapping[str, Any]] = (),
    keep_reference: bool = False,
    progress: Progress = silent,
) -> ParityReport:
    """Write the checkpoint as an int8 bundle to the folder `bundle`, and return the proof that it passed.

    `sources` say where the text came from (`name`, `licence`), for the model card. `keep_reference` also puts
    the plain fp32 graph into the bundle, in `reference/`.

    Raises:
        CheckpointError: the checkpoint is incomplete, of another architecture, or its tokenizer does not fit.
        RecipeError: the block size is none of those that the kernels have.
        BundleError: `bundle` exists and is something else.
        DataError: the held-out documents hold no prose.
        ParityFailed: a gate was missed. The message has the figures, and nothing was written.
    """
    if config.block_size not in BLOCK_SIZES:
        raise RecipeError(f"export.block_size: {config.block_size} found, one of {BLOCK_SIZES} expected")
    if bundle.exists() and not (bundle / MANIFEST_FILE).is_file():
        raise BundleError(f"{bundle}: exists and is no bundle; it is left as it is, name another folder")
    progress("Reading the checkpoint", 0, None)
    model = read_checkpoint(checkpoint)
    _check_tokenizer(model)
    with _staged(bundle) as folder:
        for name in COPIED_FILES:
            shutil.copyfile(checkpoint / name, folder / name)
        _write_json(folder / GENAI_CONFIG_FILE, genai_config(model.architecture, Tokenizer.open(folder)))
        progress("Writing the int8 graph", 0, None)
        write_device_graph(model, folder, block_size=config.block_size)
        report = prove(
            folder,
            model,
            heldout=heldout,
            config=config,
            reference=folder / REFERENCE_FOLDER if keep_reference else None,
            progress=progress,
        )
        if report.failures:
            raise ParityFailed(f"{checkpoint}: not exported; {'; '.join(report.failures)}", report)
        write_golden(folder, Session.open(folder), [text.prompt_ids for text in report.figures.greedy])
        _write_json(folder / PARITY_FILE, report.as_dict())
        card = model_card(bundle.name, model, report, recipe=recipe, sources=sources)
        (folder / CARD_FILE).write_text(card, encoding="utf-8")
        write_manifest(
            folder,
            minimum_onnxruntime=MINIMUM_ONNXRUNTIME,
            training_commit=_training_commit(checkpoint),
            recipe=recipe.as_dict() if recipe else {},
            quantization=quantization_table(folder),
            parity=report.headline(),
        )
        verify_files(folder)
    return report


def export_run(
    recipe: Recipe,
    *,
    checkpoint: Path | None = None,
    bundle: Path | None = None,
    keep_reference: bool = False,
    progress: Progress = silent,
) -> ParityReport:
    """Export the run of `recipe`, by default its newest checkpoint to its own bundle folder; see `export`."""
    corpus = recipe.run_folder / "corpus"
    return export(
        checkpoint or newest_checkpoint(recipe.run_folder),
        bundle or recipe.bundle_folder,
        config=recipe.export,
        heldout=list(read_documents(corpus / "heldout.jsonl")),
        recipe=recipe,
        sources=read_manifest(corpus).sources,
        keep_reference=keep_reference,
        progress=progress,
    )


def genai_config(sizes: Architecture, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return genai_config.json, with which onnxruntime-genai runs the same files."""
    names = {"past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value"}
    presents = {"present_key_names": "present.%d.key", "present_value_names": "present.%d.value"}
    return {
        "model": {
            "type": "qwen3",
            "bos_token_id": tokenizer.special("<|bos|>"),
            "eos_token_id": tokenizer.special("<|end|>"),
            "pad_token_id": tokenizer.special("<|pad|>"),
            "vocab_size": sizes.vocabulary,
            "context_length": sizes.context,
            "decoder": {
                "filename": GRAPH_FILE,
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "hidden_size": sizes.width,
                "head_size": sizes.head_width,
                "num_attention_heads": sizes.heads,
                "num_key_value_heads": sizes.kv_heads,
                "num_hidden_layers": sizes.layers,
                "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask"} | names,
                "outputs": {"logits": "logits"} | presents,
            },
        },
        "search": {"max_length": sizes.context, "do_sample": False, "past_present_share_buffer": True},
    }


def _check_tokenizer(checkpoint: Checkpoint) -> None:
    for name in COPIED_FILES:
        if not (checkpoint.folder / name).is_file():
            raise CheckpointError(f"{checkpoint.folder / name}: no such file; a complete checkpoint has it")
    entries, rows = Tokenizer.open(checkpoint.folder).vocabulary, checkpoint.architecture.vocabulary
    if entries > rows:
        raise CheckpointError(
            f"{checkpoint.folder}: the tokenizer has {entries} entries, the model only {rows}; "
            "they come from different runs"
        )


@contextlib.contextmanager
def _staged(bundle: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `bundle` at the end, and goes away on any error."""
    bundle.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=f".{bundle.name}.", dir=bundle.parent) as staging:
        folder, older = Path(staging) / "new", Path(staging) / "old"
        folder.mkdir()
        yield folder
        try:
            if bundle.exists():
                os.replace(bundle, older)
            os.replace(folder, bundle)
        except BaseException:
            if older.exists() and not bundle.exists():
                os.replace(older, bundle)
            raise


def _training_commit(checkpoint: Path) -> str:
    """Return the commit of the code that trained the checkpoint, as it noted it, or "unknown"."""
    try:
        state = json.loads((checkpoint / "training_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "unknown"
    return str(state.get("commit") or "unknown")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

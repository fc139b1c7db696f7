"""Export: checkpoint -> bundle, which appears whole and proved, or not at all.

Everything is written into a hidden folder beside the target. Only when the proof has passed and every file is
listed in the manifest does that folder take the bundle's name. Until then an older bundle stays as it is.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mothertongue.bundle import MANIFEST_FILE, PARITY_FILE, write_manifest
from mothertongue.bundle import verify as verify_files
from mothertongue.chat import ChatFormat, Message
from mothertongue.errors import BundleError, CheckpointError, RecipeError
from mothertongue.session import Session
from mothertongue.tokenizer import Tokenizer
from mothertongue_export.chats import run_conversations
from mothertongue_export.checkpoint import Architecture, Checkpoint, read_checkpoint
from mothertongue_export.fitting import fit_graph
from mothertongue_export.golden import write_golden
from mothertongue_export.graph import GRAPH_FILE, LAST_LOGITS
from mothertongue_export.lint import quantization_table
from mothertongue_export.model_card import model_card
from mothertongue_export.oracle import open_oracle
from mothertongue_export.parity import ParityFailed, ParityReport
from mothertongue_export.proof import COPIED_FILES, prove
from mothertongue_export.quantization import BLOCK_SIZES
from mothertongue_export.staging import staged
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
    conversations: Sequence[Document] = (),
    recipe: Recipe | None = None,
    sources: Sequence[Mapping[str, Any]] = (),
    keep_reference: bool = False,
    progress: Progress = silent,
) -> ParityReport:
    """Write the checkpoint as a bundle to the folder `bundle`, and return the proof that it passed.

    `conversations` are asked of the model, which must end its answers; without any, texts are continued.
    `sources` say where the text came from (`name`, `licence`), for the model card. `keep_reference` also puts
    the plain fp32 graph into the bundle, in `reference/`.

    Raises:
        CheckpointError: the checkpoint is incomplete, of another architecture, or its tokenizer does not fit.
        RecipeError: the block size is none of those that the kernels have.
        BundleError: `bundle` exists and is something else, or cannot be written.
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
    with (
        staged(bundle) as folder,
        open_oracle(
            model,
            heldout=heldout,
            conversations=conversations,
            reference=folder / REFERENCE_FOLDER if keep_reference else None,
            progress=progress,
        ) as oracle,
    ):
        for name in COPIED_FILES:
            shutil.copyfile(checkpoint / name, folder / name)
        _write_json(folder / GENAI_CONFIG_FILE, genai_config(model.architecture, Tokenizer.open(folder)))
        choices = fit_graph(folder, oracle, config, progress=progress)
        report = prove(folder, oracle, config=config, choices=choices, progress=progress)
        if report.failures:
            raise ParityFailed(f"{checkpoint}: not exported; {'; '.join(report.failures)}", report)
        format_ = ChatFormat.open(folder)
        asked = [format_.encode([Message("user", question)]) for question in oracle.questions]
        begun = [text.prompt_ids for text in report.figures.greedy]
        write_golden(folder, Session.open(folder), [*asked, *begun])
        _write_json(folder / PARITY_FILE, report.as_dict())
        card = model_card(bundle.name, model, report, config=config, recipe=recipe, sources=sources)
        (folder / CARD_FILE).write_text(card, encoding="utf-8")
        _seal(folder, checkpoint, report, _as_exported(recipe, config))
        verify_files(folder)
    return report


def export_run(
    recipe: Recipe,
    *,
    checkpoint: Path | None = None,
    bundle: Path | None = None,
    weights: Literal["int8", "int4", "fp32"] | None = None,
    keep_reference: bool = False,
    progress: Progress = silent,
) -> ParityReport:
    """Export the run of `recipe`, by default its newest checkpoint to its own bundle folder; see `export`.

    `weights` takes the place of the recipe's.
    """
    corpus = recipe.run_folder / "corpus"
    config = dataclasses.replace(recipe.export, weights=weights or recipe.export.weights)
    return export(
        checkpoint or newest_checkpoint(recipe.run_folder),
        bundle or recipe.bundle_folder,
        config=config,
        heldout=list(read_documents(corpus / "heldout.jsonl")),
        conversations=run_conversations(corpus),
        recipe=recipe,
        sources=read_manifest(corpus).sources,
        keep_reference=keep_reference,
        progress=progress,
    )


def _seal(folder: Path, checkpoint: Path, report: ParityReport, recipe: dict[str, Any]) -> None:
    """Write the manifest: from here on every byte is known."""
    write_manifest(
        folder,
        minimum_onnxruntime=MINIMUM_ONNXRUNTIME,
        training_commit=_training_commit(checkpoint),
        recipe=recipe,
        quantization=quantization_table(folder),
        parity=report.headline(),
    )


def _as_exported(recipe: Recipe | None, config: ExportConfig) -> dict[str, Any]:
    """Return the recipe for the manifest with the settings of this export, where `verify` finds its gates."""
    return (recipe.as_dict() if recipe else {}) | {"export": dataclasses.asdict(config)}


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
                "outputs": {"logits": LAST_LOGITS} | presents,
            },
        },
        "search": {"max_length": sizes.context, "do_sample": False, "past_present_share_buffer": True},
    }


def _check_tokenizer(checkpoint: Checkpoint) -> None:
    for name in COPIED_FILES:
        if not (checkpoint.folder / name).is_file():
            raise CheckpointError(f"{checkpoint.folder / name}: no such file; a complete checkpoint has it")
    entries, rows = Tokenizer.open(checkpoint.folder).vocabulary, checkpoint.architecture.vocabulary
    ChatFormat.open(checkpoint.folder)  # raises DataError: the bundle would load and then never answer
    if entries > rows:
        raise CheckpointError(
            f"{checkpoint.folder}: the tokenizer has {entries} entries, the model only {rows}; "
            "they come from different runs"
        )


def _training_commit(checkpoint: Path) -> str:
    """Return the commit of the code that trained the checkpoint, as it noted it, or "unknown"."""
    try:
        state = json.loads((checkpoint / "training_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "unknown"
    return str(state.get("commit") or "unknown")


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

"""A checkpoint as a Hugging Face folder, for transformers, vLLM and everything that reads the same layout.

The weights are the checkpoint's own bytes. Two things are added to the tokenizer. Plain text begins with one
beginning-of-text, as in the runtime and in training; without it a prompt is one that the model never saw. And
it gives what the model takes and no `token_type_ids`, which `model.generate(**inputs)` refuses.
"""

from __future__ import annotations

import filecmp
import json
import shutil
from pathlib import Path
from typing import Any

from mothertongue.chat import TOKENIZER_CONFIG_FILE, ChatFormat, Message
from mothertongue.errors import CheckFailed, CheckpointError
from mothertongue.tokenizer import BOS, SPECIAL_TOKENS, TOKENIZER_FILE
from mothertongue_export.checkpoint import WEIGHTS_FILE, Checkpoint
from mothertongue_export.pytorch import quiet

COPIED_FILES = ("config.json", "generation_config.json", WEIGHTS_FILE)
# Read by both tokenizers before a folder is kept: joiners, marks, digits, line ends, tokens typed as text.
SAMPLE = "র\u200c্যাব ক্\u200dষ নদী ১২৩ 45 don't\n\n  <|end|> e\u0301 " + "".join(SPECIAL_TOKENS)
CONVERSATION = (
    Message("system", "ক খ"),
    Message("user", "নদী?"),
    Message("assistant", "জল। 1 2"),
    Message("user", "hm"),
)


def check_huggingface(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if a file of the folder is missing."""
    for name in (*COPIED_FILES, TOKENIZER_FILE, TOKENIZER_CONFIG_FILE):
        if not (checkpoint.folder / name).is_file():
            raise CheckpointError(f"{checkpoint.folder / name}: no such file; a complete checkpoint has it")


def write_huggingface(checkpoint: Checkpoint, folder: Path) -> None:
    """Write `checkpoint` into the empty `folder`, and read it again with transformers' tokenizer.

    Raises:
        CheckpointError: a file of the checkpoint is missing.
        DataError: the tokenizer or its chat template cannot be read.
        CheckFailed: transformers reads other tokens than the runtime, or a file is not the checkpoint's.
    """
    check_huggingface(checkpoint)
    for name in COPIED_FILES:
        shutil.copyfile(checkpoint.folder / name, folder / name)
        if not filecmp.cmp(checkpoint.folder / name, folder / name, shallow=False):
            raise CheckFailed(f"{name}: what was read back is not what was written; export again")
    ours = ChatFormat.open(checkpoint.folder)
    begins = {"post_processor": beginning_of_text(ours.tokenizer.special(BOS))}
    _copy_json(checkpoint.folder / TOKENIZER_FILE, folder, begins)
    takes = {"model_input_names": ["input_ids", "attention_mask"]}
    _copy_json(checkpoint.folder / TOKENIZER_CONFIG_FILE, folder, takes)
    _compare_tokens(folder, ours)


def beginning_of_text(bos: int) -> dict[str, Any]:
    """Return the post-processor, as tokenizer.json writes it, that puts the id `bos` before a text."""
    start, first, second = (
        {"SpecialToken": {"id": BOS, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 0}},
    )
    return {
        "type": "TemplateProcessing",
        "single": [start, first],
        "pair": [start, first, second],
        "special_tokens": {BOS: {"id": BOS, "ids": [bos], "tokens": [BOS]}},
    }


def _copy_json(source: Path, folder: Path, added: dict[str, Any]) -> None:
    content = json.loads(source.read_text(encoding="utf-8")) | added
    text = json.dumps(content, ensure_ascii=False, indent=2)
    (folder / source.name).write_text(text + "\n", encoding="utf-8")


def _compare_tokens(folder: Path, ours: ChatFormat) -> None:
    """Raise CheckFailed unless transformers reads text and conversations in `folder` as the runtime does."""
    with quiet():
        from transformers import AutoTokenizer

        loader: Any = AutoTokenizer  # carries no annotations
        theirs = loader.from_pretrained(folder, local_files_only=True)
        prose = theirs(SAMPLE, split_special_tokens=True)["input_ids"]
        # The runtime makes its replacements in what people type; who uses transformers makes them before.
        turns = [{"role": turn.role, "content": ours.spelling(turn)} for turn in CONVERSATION]
        chat = theirs.apply_chat_template(turns, add_generation_prompt=True)
    if prose != [ours.tokenizer.special(BOS), *ours.tokenizer.encode(SAMPLE)]:
        raise CheckFailed("transformers reads other tokens of a text than the runtime; nothing is kept")
    if chat != ours.encode(CONVERSATION):
        raise CheckFailed("transformers renders a conversation otherwise than the runtime; nothing is kept")

"""The tokenizer of a checkpoint as GGUF metadata, refused where llama.cpp would read other tokens.

A GGUF file only names its split pattern; the pattern itself is in llama.cpp's source. So a tokenizer fits
only if its pattern is one that llama.cpp implements exactly. `gpt-4o` there is a near miss of the pattern of
that name: it drops the marks of Bangla, and most ids come out different without a word.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mothertongue.chat import TOKENIZER_CONFIG_FILE
from mothertongue.errors import CheckpointError
from mothertongue.tokenizer import SPECIAL_TOKENS, TOKENIZER_FILE

# Source: LLAMA_VOCAB_PRE_TYPE_QWEN35 in llama.cpp's llama-vocab.cpp; equal ids are a test.
PRE_TOKENIZERS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+": "qwen35",
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
# What would make other pieces of the same text, and has no place in a GGUF file.
PLAIN_BPE: dict[str, Any] = {
    "type": "BPE",
    "dropout": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "byte_fallback": False,
    "ignore_merges": False,
}
NORMAL, CONTROL, UNUSED = 1, 3, 5  # gguf.TokenType


@dataclass(frozen=True, kw_only=True)
class GgufTokenizer:
    """A byte-level BPE tokenizer as llama.cpp reads it."""

    pre: str  # llama.cpp's name of the split pattern
    tokens: list[str]  # by id, one for each row of the embedding
    types: list[int]
    merges: list[str]
    chat_template: str

    def id(self, special: str) -> int:
        """Return the id of a special token."""
        return self.tokens.index(special)


def read_gguf_tokenizer(folder: Path, rows: int) -> GgufTokenizer:
    """Return the tokenizer of the checkpoint in `folder`, filled up to `rows` entries.

    Raises:
        CheckpointError: a file is missing, or llama.cpp has no such tokenizer; the message has the reason.
    """
    content, config = _read_json(folder / TOKENIZER_FILE), _read_json(folder / TOKENIZER_CONFIG_FILE)
    try:
        pre = _pre_tokenizer(folder / TOKENIZER_FILE, content)
        model, added = content["model"], content["added_tokens"]
        by_id = {number: token for token, number in model["vocab"].items()}
        by_id |= {token["id"]: token["content"] for token in added}
        merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
        template = config["chat_template"]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{folder}: {error!r}; a tokenizer of `mothertongue` was expected") from None
    if unknown := {token["content"] for token in added} ^ set(SPECIAL_TOKENS):
        raise CheckpointError(
            f"{folder / TOKENIZER_FILE}: the added tokens differ from {' '.join(SPECIAL_TOKENS)} by "
            f"{' '.join(sorted(unknown))}; train it with `mothertongue tokenizer`"
        )
    if max(by_id) >= rows:
        raise CheckpointError(
            f"{folder}: the tokenizer has the id {max(by_id)}, the model only {rows} rows; "
            "they come from different runs"
        )
    kinds = {number: CONTROL if token in SPECIAL_TOKENS else NORMAL for number, token in by_id.items()}
    return GgufTokenizer(
        pre=pre,
        tokens=[by_id.get(number, f"[PAD{number}]") for number in range(rows)],
        types=[kinds.get(number, UNUSED) for number in range(rows)],
        merges=merges,
        chat_template=template,
    )


def _pre_tokenizer(path: Path, content: dict[str, Any]) -> str:
    """Return llama.cpp's name for how the tokenizer at `path` splits, or raise CheckpointError."""

    def refuse(what: str, found: object, expected: str) -> CheckpointError:
        return CheckpointError(
            f"{path}: {what} is {found}, and llama.cpp knows only {expected}; it would read other tokens. "
            "Leave gguf out of --formats, or train the tokenizer with `mothertongue tokenizer`"
        )

    steps = content["pre_tokenizer"]
    split, *rest = steps.get("pretokenizers", [steps])
    pattern = (split.get("pattern") or {}).get("Regex")
    if pattern not in PRE_TOKENIZERS:
        raise refuse(
            "the split pattern", repr(pattern or split["type"]), " or ".join(map(repr, PRE_TOKENIZERS))
        )
    way = (split["behavior"], split["invert"])
    if way != ("Isolated", False):
        raise refuse("the split", way, "('Isolated', False)")
    if [{key: step.get(key) for key in BYTE_LEVEL} for step in rest] != [BYTE_LEVEL]:
        raise refuse("what follows the split", rest, "a ByteLevel without prefix space and pattern")
    for key, plain in PLAIN_BPE.items():
        if content["model"].get(key, plain) != plain:
            raise refuse(f"model.{key}", repr(content["model"][key]), repr(plain))
    normaliser = (content.get("normalizer") or {}).get("type", "NFC")
    if normaliser != "NFC":
        raise refuse("the normaliser", normaliser, "text in NFC")
    return PRE_TOKENIZERS[pattern]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not readable ({error}); a complete checkpoint has it") from None
    return content

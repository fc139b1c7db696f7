"""Your own text: `.txt` and `.jsonl` files, also compressed, as documents.

A `.txt` file is one document; every line of a `.jsonl` file is one: `{"text": ...}`, or `{"messages": [...]}`
with the roles system, user and assistant. Text is normalised to NFC here; an exact repetition is dropped.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import lzma
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mothertongue.chat import Message
from mothertongue.errors import DataError
from mothertongue_trainer.document import Document
from mothertongue_trainer.recipe import FilesConfig

OPENERS: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open}


def read_files(configs: Sequence[FilesConfig]) -> Iterator[Document]:
    """Yield the documents of all `configs` in order, each text once: the first of equal ones stays.

    Raises:
        DataError: no file matches; a file is missing, empty, not UTF-8 or damaged; a line is not a document.
            The message names file and line.
    """
    seen: set[bytes] = set()
    for config in configs:
        for path in matching_paths(config):
            for document in _read_file(path, config):
                digest = hashlib.sha256("\0".join(document.passages).encode()).digest()[:16]
                if digest not in seen:
                    seen.add(digest)
                    yield document


def matching_paths(config: FilesConfig) -> list[Path]:
    """Return the files that the patterns of `config` match, sorted within each pattern.

    Raises:
        DataError: a pattern matches nothing, or a file of another kind.
    """
    found: dict[Path, None] = {}  # a set that keeps its order: a file named twice is read once
    for pattern in config.paths:
        # A path that exists is taken as it is, so that a name with [brackets] needs no escape.
        names = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern, recursive=True))
        paths = [Path(name) for name in names if Path(name).is_file()]
        if not paths:
            raise DataError(
                f"{pattern}: no such file (corpus.files '{config.name}'); paths start at the working folder"
            )
        found.update(dict.fromkeys(paths))
    if not found:
        raise DataError(f"corpus.files '{config.name}': no paths; name at least one file")
    for path in found:
        if _kind(path) not in (".txt", ".jsonl"):
            raise DataError(f"{path}: .txt or .jsonl expected (also .gz, .xz)")
    return list(found)


def _kind(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix in OPENERS else path.suffix


def _read_file(path: Path, config: FilesConfig) -> Iterator[Document]:
    is_empty = True
    for number, text in _read_text(path):
        where = f"{path}:{number}" if _kind(path) == ".jsonl" else str(path)
        if not text.strip():
            continue
        is_empty = False
        content = _read_line(text, where) if _kind(path) == ".jsonl" else {"text": _normalise(text, where)}
        yield Document(id=where, language=config.language, component=config.name, **content)
    if is_empty:
        raise DataError(f"{path}: no text in it; remove it from corpus.files '{config.name}'")


def _read_text(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, text): the lines of a `.jsonl` file, or a `.txt` file whole as line 1."""
    opener = OPENERS.get(path.suffix, Path.open)
    offset_bytes = 0
    try:
        with opener(path, "rb") as file:
            pieces = file if _kind(path) == ".jsonl" else (file.read(),)
            for number, piece in enumerate(pieces, start=1):
                yield number, piece.decode("utf-8-sig" if number == 1 else "utf-8")
                offset_bytes += len(piece)
    except UnicodeDecodeError as error:
        at_byte = offset_bytes + error.start
        raise DataError(f"{path}: not UTF-8 at byte {at_byte}; save the file as UTF-8") from None
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError):
        raise DataError(f"{path}: damaged or not {path.suffix[1:]}-compressed; fetch it again") from None


def _read_line(line: str, where: str) -> dict[str, Any]:
    """Return the content of a `.jsonl` line as keyword arguments of Document."""
    try:
        body = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    if isinstance(body, dict) and isinstance(body.get("text"), str) and body["text"].strip():
        return {"text": _normalise(body["text"], where)}
    if isinstance(body, dict) and "messages" in body:
        return {"messages": _read_messages(body["messages"], where)}
    raise DataError(f'{where}: {{"text": "..."}} or {{"messages": [...]}} expected, {_excerpt(line)} found')


def _read_messages(turns: Any, where: str) -> tuple[Message, ...]:
    """Return the messages of a conversation: [system] (user assistant)+, as the chat format trains them."""
    try:
        messages = tuple(
            Message(role=turn["role"], content=_normalise(turn["content"], where)) for turn in turns
        )
    except (TypeError, KeyError, ValueError):
        raise DataError(f'{where}: messages need {{"role": "user", "content": "..."}} each') from None
    roles = [message.role for message in messages]
    exchange = roles[1:] if roles[:1] == ["system"] else roles
    if not exchange or exchange != ["user", "assistant"] * (len(exchange) // 2):
        raise DataError(
            f"{where}: roles are {', '.join(roles) or 'none'}; user and assistant in turns expected, "
            "a system message before them or none"
        )
    return messages


def _normalise(text: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can name half a character, "\\ud800"; UTF-8 and a tokenizer cannot
        raise DataError(f"{where}: half a surrogate pair in the text; write the whole character") from None
    return unicodedata.normalize("NFC", text).strip()


def _excerpt(line: str, characters: int = 40) -> str:
    line = line.strip()
    return line if len(line) <= characters else f"{line[:characters]}..."

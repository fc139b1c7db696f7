"""Text to token ids and back, for byte-level BPE tokenizers.

Text from people never becomes a special token: `encode` treats `<|end|>` in it as seven ordinary characters.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mothertongue.errors import DataError

TOKENIZER_FILE = "tokenizer.json"
BOS, USER, ASSISTANT, SYSTEM, END, PAD = SPECIAL_TOKENS = (
    "<|bos|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|end|>",
    "<|pad|>",
)


def byte_alphabet() -> dict[str, int]:
    """Return the printable character that stands for each byte, as {character: byte}.

    The alphabet of GPT-2's encoder.py, used by every byte-level BPE: printable Latin-1 characters stand for
    themselves, the other bytes follow from U+0100 on.
    """
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHARACTER = byte_alphabet()


class Tokenizer:
    """A byte-level BPE tokenizer, read from the `tokenizer.json` of a run, checkpoint or bundle."""

    def __init__(self, backend: Any) -> None:
        missing = [token for token in SPECIAL_TOKENS if backend.token_to_id(token) is None]
        if missing:
            raise DataError(
                f"the tokenizer has no {' '.join(missing)}; train it with `mothertongue tokenizer`"
            )
        # Only `encode_with_specials` may turn text into special tokens.
        backend.encode_special_tokens = True
        self._backend = backend
        self._special_ids = {token: backend.token_to_id(token) for token in SPECIAL_TOKENS}
        self._bytes: dict[int, bytes] = {}  # of the tokens that came up; asking the library takes longer
        self._special_pattern = re.compile(f"({'|'.join(map(re.escape, SPECIAL_TOKENS))})")

    @classmethod
    def open(cls, folder: Path) -> Tokenizer:
        """Return the tokenizer in `folder`; raise DataError if it is missing or unreadable."""
        # Deferred: `mothertongue --help` must not load it.
        import tokenizers

        path = folder / TOKENIZER_FILE
        if not path.is_file():
            raise DataError(f"{path}: not found; a folder with a trained tokenizer was expected")
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
        except Exception as error:  # the library raises bare Exception
            raise DataError(f"{path}: not a tokenizer ({error}); train or copy it again") from error

    @property
    def vocabulary(self) -> int:
        """The number of token ids, special tokens included."""
        return int(self._backend.get_vocab_size())

    def special(self, token: str) -> int:
        """Return the id of the special `token`, for example `<|end|>`; raise KeyError if it is none."""
        return int(self._special_ids[token])

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, none of them special; raise DataError if it came from no UTF-8."""
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        except (
            TypeError,
            UnicodeEncodeError,
        ):  # lone surrogates: Python's way to carry bytes that are no text
            raise DataError("the text holds bytes that are not UTF-8; type or save it as UTF-8") from None
        return ids

    def encode_with_specials(self, text: str) -> list[int]:
        """Return the ids of our own `text` (a template), where special tokens stand for themselves."""
        ids: list[int] = []
        for part in self._special_pattern.split(text):
            if part in self._special_ids:
                ids.append(self.special(part))
            elif part:
                ids.extend(self.encode(part))
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that `token_id` adds to a text: none for a special token or an unused id."""
        content = self._bytes.get(token_id)
        if content is None:
            token = self._backend.id_to_token(token_id)
            shown = token is not None and token not in self._special_ids
            content = bytes(map(BYTE_OF_CHARACTER.__getitem__, token)) if shown else b""
            self._bytes[token_id] = content
        return content

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def stream(self) -> TextStream:
        """Return a decoder that takes one id at a time and never shows half a character."""
        return TextStream(self)


class TextStream:
    """Decodes ids one by one; the pieces joined equal `Tokenizer.decode` of all the ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """Return the characters that `token_id` completes, perhaps none."""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """Return U+FFFD if the text ended within a character, else nothing."""
        return self._decoder.decode(b"", final=True)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many ids `left` and `right` share at their beginning."""
    length = min(len(left), len(right))
    return next((i for i in range(length) if left[i] != right[i]), length)

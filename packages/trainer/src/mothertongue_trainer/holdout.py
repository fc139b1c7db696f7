"""The held-out part of a corpus, decided by hashes alone."""

import hashlib


def is_held_out(text: str, percent: float) -> bool:
    """Return whether the sha256 of `text` (UTF-8) falls into the held-out `percent`.

    Position, seed and recipe do not matter: what was held out once stays held out, and equal texts are never
    on both sides.
    """
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") < percent / 100 * 2**64

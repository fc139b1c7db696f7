from pathlib import Path

import pytest

from mothertongue.errors import DataError
from mothertongue_trainer.identity import hash_tokenizer


def test_a_tokenizer_is_known_by_the_bytes_of_its_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer\.json: missing; run `mothertongue tokenizer`"):
        hash_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"abc")  # the example of FIPS 180-2
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert hash_tokenizer(tmp_path) == expected

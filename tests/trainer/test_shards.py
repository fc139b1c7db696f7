from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from mothertongue.errors import DataError
from mothertongue_trainer.shards import Shard

SHARD = Shard(
    tokens=np.array([0, 65_535, 4, 0, 9, 8, 4], dtype=np.uint16),
    learn=np.array([0, 1, 1, 0, 1, 0, 1], dtype=np.uint8),
    offsets=np.array([0, 3, 7]),
    characters=np.array([5, 1]),
    metadata={"vocabulary": "65536", "pad": "5"},
)


def test_a_shard_survives_its_file_and_is_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "গদ্য.safetensors"
    SHARD.save(path)
    opened, oracle = Shard.open(path), load_file(path)
    assert opened.metadata == SHARD.metadata
    for name in ("tokens", "learn", "offsets", "characters"):
        assert getattr(opened, name).dtype == oracle[name].dtype
        np.testing.assert_array_equal(getattr(opened, name), oracle[name])
        np.testing.assert_array_equal(getattr(opened, name), getattr(SHARD, name))


def test_an_opened_shard_is_read_only(tmp_path: Path) -> None:
    SHARD.save(tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="read-only"):
        Shard.open(tmp_path / "a.safetensors").tokens[0] = 1


def test_a_missing_or_damaged_shard_names_the_command_that_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(DataError, match=r"missing; run `mothertongue tokenizer`"):
        Shard.open(path)
    SHARD.save(path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:5], whole[:100], whole[:-3]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="not a token shard"):
            Shard.open(path)


def test_a_shard_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"a\.safetensors: cannot be written"):
        SHARD.save(tmp_path / "absent" / "a.safetensors")

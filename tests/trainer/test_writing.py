from pathlib import Path

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file
from tokenizers import models

from mothertongue_trainer.writing import writing

MESSAGE = r"file: cannot be written: .*; make room and start again"


def test_what_libraries_raise_when_they_cannot_write_is_an_oserror_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "file"
    with (
        pytest.raises(OSError, match=MESSAGE),
        writing(path),
    ):
        save_file({"a": np.zeros(2)}, path)
    with (
        pytest.raises(OSError, match=MESSAGE),
        writing(path),
    ):
        tokenizers.Tokenizer(models.BPE()).save(str(path))


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt(), OSError(28, "No space left")])
def test_every_other_error_passes_as_it_is(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, writing(tmp_path / "file"):
        raise error
    assert caught.value is error

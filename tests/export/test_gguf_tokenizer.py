import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mothertongue.errors import CheckpointError
from mothertongue.tokenizer import SPECIAL_TOKENS
from mothertongue_export.gguf_tokenizer import read_gguf_tokenizer
from mothertongue_trainer.vocabulary import SPLIT_PATTERN

Change = Callable[[dict[str, Any]], object]
O200K = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+"


def test_a_tokenizer_of_ours_is_qwen35_to_llama_cpp(split_as_qwen: Path) -> None:
    content = json.loads((split_as_qwen / "tokenizer.json").read_text(encoding="utf-8"))
    rows = len(content["model"]["vocab"]) + 2
    tokenizer = read_gguf_tokenizer(split_as_qwen, rows)
    assert tokenizer.pre == "qwen35"
    assert len(tokenizer.tokens) == len(tokenizer.types) == rows
    assert [tokenizer.types[tokenizer.id(token)] for token in SPECIAL_TOKENS] == [3] * 6  # control
    assert tokenizer.tokens[-2:] == [f"[PAD{rows - 2}]", f"[PAD{rows - 1}]"]
    assert tokenizer.types[-2:] == [5, 5]  # unused
    assert set(tokenizer.types[6:-2]) == {1}
    assert len(tokenizer.merges) == len(content["model"]["merges"])
    assert all(merge.count(" ") == 1 for merge in tokenizer.merges)


def split(content: dict[str, Any]) -> dict[str, Any]:
    step: dict[str, Any] = content["pre_tokenizer"]["pretokenizers"][0]
    return step


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: split(c)["pattern"].update(Regex=O200K), r"the split pattern is .*N\}\{1,3\}"),
        (lambda c: split(c)["pattern"].update(Regex=SPLIT_PATTERN + "|x"), "the split pattern is"),
        (lambda c: c.update(pre_tokenizer=c["pre_tokenizer"]["pretokenizers"][1]), "pattern is 'ByteLevel'"),
        (lambda c: split(c).update(behavior="Removed"), "the split is .*Removed"),
        (lambda c: split(c).update(invert=True), "the split is .*True"),
        (lambda c: c["pre_tokenizer"]["pretokenizers"].pop(), r"what follows the split is \[\]"),
        (
            lambda c: c["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True),
            "what follows the split",
        ),
        (lambda c: c["model"].update(ignore_merges=True), "model.ignore_merges is True"),
        (lambda c: c["model"].update(type="Unigram"), "model.type is 'Unigram'"),
        (lambda c: c.update(normalizer={"type": "NFKC"}), "the normaliser is NFKC"),
        (lambda c: c["added_tokens"].append({"id": 700, "content": "<|tool|>"}), r"by <\|tool\|>"),
        (lambda c: c["added_tokens"].pop(), r"by <\|pad\|>"),
        (lambda c: c["model"]["vocab"].update(extra=10_000), "has the id 10000"),
        (lambda c: c.pop("model"), "KeyError"),
        (lambda c: c.update(pre_tokenizer=None), "a tokenizer of `mothertongue` was expected"),
        (lambda c: c.update(pre_tokenizer={"type": "Sequence", "pretokenizers": []}), "was expected"),
    ],
)
def test_a_tokenizer_that_llama_cpp_has_not_is_refused_with_the_reason(
    split_as_qwen: Path, tmp_path: Path, change: Change, reason: str
) -> None:
    folder = shutil.copytree(split_as_qwen, tmp_path / "other")
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match=reason) as error:
        read_gguf_tokenizer(folder, 700)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_missing_or_broken_file_is_named(split_as_qwen: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(split_as_qwen, tmp_path / "other")
    (folder / name).write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"{name}: not readable"):
        read_gguf_tokenizer(folder, 700)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: not readable"):
        read_gguf_tokenizer(folder, 700)

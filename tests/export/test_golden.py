import json
import shutil
from pathlib import Path

import pytest

from mothertongue.errors import BundleError
from mothertongue.session import Session
from mothertongue_export.golden import CLEAR_CHOICE_NATS, GoldenText, golden_findings, read_golden
from mothertongue_export.pytorch import PyTorchModel


def test_a_bundle_repeats_its_golden_set(bundle: Path) -> None:
    golden = read_golden(bundle)
    assert sum(len(text.greedy_ids) for text in golden) > 20
    assert golden_findings(golden, Session.open(bundle)) == []


def test_golden_choices_are_those_that_pytorch_finds_clear(bundle: Path, tied: Path) -> None:
    """The bundle made them; PyTorch, which has other errors, must agree on each with much of the margin."""
    model = PyTorchModel.open(tied)
    for text in read_golden(bundle):
        logits = model.logits([[*text.prompt_ids, *text.greedy_ids]])[0]
        for row, token in zip(logits[len(text.prompt_ids) - 1 :], text.greedy_ids, strict=False):
            assert row.argmax() == token
            assert row[token] - sorted(row)[-2] > CLEAR_CHOICE_NATS / 2


def test_a_token_that_differs_is_named_with_its_place(bundle: Path) -> None:
    first, *others = read_golden(bundle)
    wrong = (first.greedy_ids[2] + 1) % 300
    altered = GoldenText(prompt_ids=first.prompt_ids, greedy_ids=[*first.greedy_ids[:2], wrong])
    (finding,) = golden_findings([*others, altered], Session.open(bundle))
    assert finding.startswith(
        f"golden text {len(others) + 1}: token 3 is {first.greedy_ids[2]}, {wrong} was proved"
    )


@pytest.mark.parametrize("content", [None, "", "{}", json.dumps({"texts": [{"prompt": [1]}]})])
def test_a_missing_or_broken_golden_set_is_an_error(
    bundle: Path, tmp_path: Path, content: str | None
) -> None:
    folder = shutil.copytree(bundle, tmp_path / "copy")
    (folder / "golden.json").unlink()
    if content is not None:
        (folder / "golden.json").write_text(content, encoding="utf-8")
    with pytest.raises(BundleError, match="no golden set"):
        read_golden(folder)

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mothertongue.bundle import write_manifest
from mothertongue.doctor import examine
from mothertongue.errors import BundleError
from mothertongue.golden import GoldenText, golden_findings, read_golden
from mothertongue.session import Session


def greedy(session: Session, prompt: Sequence[int], tokens: int) -> list[int]:
    session.reset()
    ids = [int(session.feed(prompt).argmax())]
    while len(ids) < tokens:
        ids.append(int(session.feed(ids[-1:]).argmax()))
    return ids


@pytest.fixture
def golden(bundle: Path) -> GoldenText:
    prompt = [0, 9, 12]
    return GoldenText(prompt_ids=prompt, greedy_ids=greedy(Session.open(bundle, threads=1), prompt, 6))


def store(folder: Path, text: GoldenText) -> None:
    content = {"texts": [{"prompt_ids": list(text.prompt_ids), "greedy_ids": list(text.greedy_ids)}]}
    (folder / "golden.json").write_text(json.dumps(content), encoding="utf-8")
    write_manifest(
        folder, minimum_onnxruntime="1.23", training_commit="", recipe={}, quantization=[], parity={}
    )


def test_what_was_proved_is_repeated(copied: Path, golden: GoldenText) -> None:
    store(copied, golden)
    assert golden_findings(read_golden(copied), Session.open(copied, threads=1)) == []
    (finding,) = [finding for finding in examine(copied) if finding.name == "golden"]
    assert finding.good
    assert finding.found == "6 proved tokens, none of 1 texts differ"


def test_a_token_that_differs_is_named_with_its_place_and_makes_doctor_bad(
    copied: Path, golden: GoldenText
) -> None:
    wrong = [*golden.greedy_ids]
    wrong[3] = int(np.mod(wrong[3] + 1, 50))
    altered = GoldenText(prompt_ids=golden.prompt_ids, greedy_ids=wrong)
    store(copied, altered)
    (sentence,) = golden_findings([altered], Session.open(copied, threads=1))
    assert sentence.startswith(f"golden text 1: token 4 is {golden.greedy_ids[3]}, {wrong[3]} was proved")
    (finding,) = [finding for finding in examine(copied) if finding.name == "golden"]
    assert not finding.good
    assert sentence in finding.remedy


@pytest.mark.parametrize("content", [None, "", "{}", json.dumps({"texts": [{"prompt": [1]}]})])
def test_a_missing_or_broken_golden_set_is_an_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "golden.json").write_text(content, encoding="utf-8")
    with pytest.raises(BundleError, match="no golden set"):
        read_golden(tmp_path)

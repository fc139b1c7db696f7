"""The bundle's own files in onnxruntime-genai, which reads genai_config.json and nothing of ours."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import mothertongue
from mothertongue.session import Session
from mothertongue.tokenizer import Tokenizer

NEAR_TIE_NATS = 0.1  # a token this much less likely than the best may win by rounding
PROMPTS = ("The river is called", "নদী শব্দের ইংরেজি", "The fish", "ক")
GREEDY_TOKENS = 24

genai = pytest.importorskip("onnxruntime_genai", reason="pip install onnxruntime-genai")


def greedy(folder: Path, ids: Sequence[int], count: int) -> list[int]:
    """What onnxruntime-genai writes after `ids`, the end included."""
    model = genai.Model(str(folder))
    settings = genai.GeneratorParams(model)
    settings.set_search_options(max_length=len(ids) + count, do_sample=False)
    generator = genai.Generator(model, settings)
    generator.append_tokens(list(ids))
    written: list[int] = []
    while not generator.is_done():
        generator.generate_next_token()
        written += generator.get_next_tokens().tolist()
    return written


def test_the_bundle_as_it_is_writes_the_same_tokens(bundle: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bundle, tmp_path / "মডেল ১")
    tokenizer, session = Tokenizer.open(bundle), Session.open(bundle)
    for prompt in PROMPTS:
        ids = [tokenizer.special("<|bos|>"), *tokenizer.encode(prompt)]
        theirs = greedy(folder, ids, GREEDY_TOKENS)
        ours = mothertongue.load(bundle, threads=1).complete(
            prompt, mothertongue.Sampling(max_tokens=GREEDY_TOKENS)
        )
        session.rewind(0)
        rows = session.feed_each([*ids, *theirs])[len(ids) - 1 : -1]
        losses = rows.max(axis=1) - rows[np.arange(len(theirs)), theirs]
        assert losses.max() <= NEAR_TIE_NATS
        if losses.max() == 0:
            assert tokenizer.decode(theirs) == ours.text
    assert len(theirs) > 1


def test_its_config_asks_for_one_row_of_logits(bundle: Path, tmp_path: Path) -> None:
    """With the output of free shape genai binds one row for each token of the prompt, and the run fails."""
    folder = shutil.copytree(bundle, tmp_path / "free")
    config = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))
    assert config["model"]["decoder"]["outputs"]["logits"] == "last_logits"
    config["model"]["decoder"]["outputs"]["logits"] = "logits"
    (folder / "genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(RuntimeError, match="logits"):
        greedy(folder, [0, 7, 8, 9], 2)

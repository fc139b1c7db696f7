import dataclasses
import json
import math
from typing import Any

import pytest

from mothertongue_export.parity import Chats, Figures, GreedyText, LanguageParity, judge
from mothertongue_trainer.recipe import ExportConfig

LANGUAGE = LanguageParity(
    bits_per_byte_torch=0.9,
    bits_per_byte_bundle=0.901,
    increase_percent=0.11,
    tokens=100,
    bytes=300,
    documents=4,
    bits_per_byte_interval=(0.8, 1.0),
    increase_percent_interval=(0.05, 0.2),
)
FIGURES = Figures(
    reference_max_abs=1e-5,
    tokens=100,
    kl_mean=0.001,
    kl_p99=0.01,
    kl_p999=0.05,
    kl_max=0.1,
    logit_max_abs=0.3,
    logit_mean_abs=0.02,
    perplexity_ratio=1.001,
    top1_agreement_percent=99.5,
    near_tie_flips_percent=0.4,
    clear_flips_percent=0.1,
    top5_overlap_percent=98.0,
    prefill_kl_max=0.001,
    prefill_worst_position=7,
    languages={"bn": LANGUAGE},
    greedy=[GreedyText(prompt_ids=[0, 1], ids=[2, 3], tokens=2, difference="near-tie")],
    chats=Chats(asked=20, ended=19, endless=0, limit_tokens=64),
)
CONFIG = ExportConfig()


def test_figures_within_every_gate_pass() -> None:
    assert judge(FIGURES, [], CONFIG).verdict == "PASS"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"reference_max_abs": 2e-4}, "reference_max_abs is 0.0002, at most 0.0001"),
        ({"kl_mean": 0.02}, "kl_mean is 0.02, at most 0.005"),
        ({"kl_mean": math.nan}, "kl_mean is nan"),
        ({"clear_flips_percent": 0.6}, "clear_flips_percent is 0.6, at most 0.1"),
        ({"prefill_kl_max": 0.5}, "prefill_kl_max"),
        (
            {"chats": Chats(asked=20, ended=18, endless=2, limit_tokens=64)},
            "endless_chats is 2, at most 0 allowed",
        ),
        (
            {"languages": {"bn": LANGUAGE, "en": dataclasses.replace(LANGUAGE, increase_percent=0.7)}},
            "languages.en.increase_percent is 0.7, at most 0.5",
        ),
    ],
)
def test_one_missed_gate_fails_and_is_named(change: dict[str, Any], reason: str) -> None:
    report = judge(dataclasses.replace(FIGURES, **change), [], CONFIG)
    assert report.verdict == "FAIL"
    assert len(report.failures) == 1
    assert reason in report.failures[0]


def test_float_weights_must_be_pytorch_itself_and_four_bits_may_lose_more() -> None:
    four = dataclasses.replace(CONFIG, weights="int4")
    exact = dataclasses.replace(CONFIG, weights="fp32")
    rough = dataclasses.replace(FIGURES, kl_mean=0.03, clear_flips_percent=10.0)
    assert judge(rough, [], four).verdict == "PASS"
    assert judge(rough, [], CONFIG).verdict == "FAIL"
    assert judge(FIGURES, [], exact).failures == ["logit_max_abs is 0.3, at most 0.0001 allowed"]


def test_a_finding_fails_whatever_the_figures_say() -> None:
    report = judge(FIGURES, ["tokenizer.json: another one"], CONFIG)
    assert report.verdict == "FAIL"
    assert report.failures == ["tokenizer.json: another one"]


def test_parity_json_has_the_keys_that_others_read() -> None:
    stored = json.loads(json.dumps(judge(FIGURES, [], CONFIG).as_dict(), allow_nan=False))
    assert stored["verdict"] == "PASS"
    keys = {"reference_max_abs", "kl_mean", "clear_flips_percent", "top1_agreement_percent", "languages"}
    assert keys <= set(stored)
    language = {"bits_per_byte_torch", "bits_per_byte_bundle", "increase_percent"}
    assert language <= set(stored["languages"]["bn"])
    assert all({"name", "value", "limit", "passed"} == set(gate) for gate in stored["gates"])


def test_every_gate_shows_its_limit_in_the_table() -> None:
    report = judge(FIGURES, [], CONFIG)
    limits = [limit for _, _, limit in report.rows() if limit]
    assert len(limits) == len(report.gates)

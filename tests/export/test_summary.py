import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from mothertongue_export.summary import read_summary, summary_tables
from mothertongue_trainer.recipe import read_recipe

ROOT = Path(__file__).parents[2]
QUALITY = {"bits_per_byte": 0.9, "nats_per_token": 4.2, "characters_per_token": 2.87, "bytes": 100}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "smoke"
    (folder / "audit").mkdir(parents=True)
    return folder


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def drawn(*done: str) -> str:
    console = Console(width=120, file=io.StringIO())
    recipe = read_recipe(ROOT / "recipes" / "smoke.toml")
    for table in summary_tables(read_summary(recipe, done)):
        console.print(table)
    return console.file.getvalue()


def test_a_run_that_has_just_begun_shows_what_it_has(run: Path) -> None:
    write(run / "stages.json", {"corpus": {"fingerprint": "0", "finished": True, "seconds": 12.34}})
    text = drawn("corpus")
    assert "12.3" in text
    assert "bits per byte" not in text


def test_a_finished_run_shows_quality_exam_and_both_proofs(run: Path) -> None:
    languages = {"bn": QUALITY}
    write(
        run / "evaluation.json",
        {
            "languages": languages,
            "twin": {"bn": {**QUALITY, "bits_per_byte": 1.78}},
            "unigram": {"bn": {**QUALITY, "bits_per_byte": 1.44}},
            "chat": {"english_percent": 99.5, "bangla_percent": None},
        },
    )
    check = {"name": "labels", "verdict": "PASS", "seconds": 2.0, "evidence": ""}
    write(run / "audit" / "certificate.json", {"verdict": "PASS", "checks": [check], "not_run": []})
    write(
        Path("bundles/smoke/parity.json"),
        {
            "verdict": "PASS", "reference_max_abs": 3e-6, "kl_mean": 0.0002, "top1_agreement_percent": 99.1,
            "clear_flips_percent": 0.1, "languages": {"bn": {"increase_percent": 0.012}},
        },
    )  # fmt: skip
    text = drawn("train", "evaluate", "export", "exam")
    quality = ("0.900", "1.780", "1.440", "2.87", "99.5")
    for figure in (*quality, "1 checks, 0 not run, 2 s", "3.0e-06", "+0.012 %"):
        assert figure in text, figure
    assert "English -> word" not in text  # a skill without questions has no row


def test_figures_of_an_older_model_are_not_shown_beside_a_newer_one(run: Path) -> None:
    languages = {"bn": QUALITY}
    evaluation = {
        "languages": languages,
        "twin": languages,
        "unigram": languages,
        "chat": {"english_percent": 99.5},
    }
    write(run / "evaluation.json", evaluation)
    write(Path("bundles/smoke/parity.json"), {"verdict": "PASS"})
    text = drawn("train", "evaluate")
    assert "0.900" in text
    assert "99.5" not in text
    assert "int8 bundle" not in text

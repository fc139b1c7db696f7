"""The comparison with other engines, on numbers and files written by hand; no engine runs here."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from figures import peers_on
from peers import rounds
from peers.__main__ import main, nano_quality, slug
from peers.agreement import verdict
from peers.conversion import (
    ConversionFailed,
    Environments,
    OtherCheckpoint,
    child_environment,
    convert,
    run_converter,
    stage,
)
from peers.engines import Written
from peers.rounds import Contestant, MeasurementFailed, read_report, run_child, run_rounds
from peers.score import demand_rows, demands, engine_rows, engine_summary, ratios
from peers.speed import prompt_ids, status_kb

from mothertongue.device import Device
from mothertongue_export.gguf_tokenizer import read_gguf_tokenizer

SPEEDS = ("decode_tokens_per_s", "prefill_256_tokens_per_s", "prefill_1024_tokens_per_s")


def measured(
    decode: float, *, prefill: float = 100.0, busy: float = 10.0, **more: object
) -> dict[str, object]:
    """One round of one engine."""
    return {
        **dict(zip(SPEEDS, (decode, prefill, prefill / 2), strict=True)),
        "ttft_ms": 2560.0 / prefill * 100,
        "peak_mb": 500.0,
        "load_s": 0.5,
        "decode_busy_tokens_per_s": busy,
        "settings": {},
        "settings_busy": {},
        **more,
    }


def test_a_figure_is_the_median_of_the_rounds_and_keeps_its_extremes() -> None:
    summary = engine_summary([measured(60, idle_cpu_s=0.01), measured(20), measured(64)])
    assert summary["decode_tokens_per_s"] == 60
    assert summary["spread"]["decode_tokens_per_s"] == [20, 64]
    assert summary["idle_cpu_s"] == 0.01  # measured in one round only


def test_ratios_are_ours_over_theirs() -> None:
    engines = {
        "mothertongue": measured(60, prefill=450, busy=48),
        "llamacpp_q8_0": measured(40, prefill=225, busy=12),
        "genai_int8": measured(50, prefill=300),
    }
    assert ratios(engines, bound_tokens_per_s=75) == pytest.approx(
        {
            "decode_vs_llamacpp_q8_0": 1.5,
            "prefill_256_vs_llamacpp_q8_0": 2.0,
            "prefill_1024_vs_llamacpp_q8_0": 2.0,
            "decode_vs_genai_int8": 1.2,
            "prefill_256_vs_genai_int8": 1.5,
            "prefill_1024_vs_genai_int8": 1.5,
            "decode_busy_vs_llamacpp_q8_0": 4.0,
            "decode_busy_vs_idle": 0.8,
            "decode_of_bandwidth_bound": 0.8,
        }
    )


def test_an_engine_that_did_not_run_has_no_ratio() -> None:
    found = ratios({"mothertongue": measured(60)}, bound_tokens_per_s=75)
    assert set(found) == {"decode_busy_vs_idle", "decode_of_bandwidth_bound"}


def test_a_demand_is_met_on_the_right_side_of_its_limit() -> None:
    asked = {
        d.figure: d.met for d in demands({"decode_vs_genai_int8": 1.0, "load_s": 0.5, "idle_cpu_s": 0.2})
    }
    assert (asked["decode_vs_genai_int8"], asked["load_s"], asked["idle_cpu_s"]) == (False, True, False)
    assert asked["cold_command_s"] is None  # not measured is not met, and not missed


def test_the_tables_name_what_is_missing_and_who_wrote_other_tokens() -> None:
    row = engine_summary([measured(60, idle_cpu_s=0.0)])
    engines = {
        "mothertongue": row | {"agreement": {"same_model": True}},
        "genai_int8": row | {"agreement": {"same_model": False}},
    }
    result = {"engines": engines, "figures": [demand.as_dict() for demand in demands({"load_s": 0.5})]}
    names = [line[0] for line in engine_rows(result)]
    assert names == ["Mothertongue int8", "onnxruntime-genai int8 (other tokens!)"]
    lines = {line[0]: line[1:] for line in demand_rows(result)}
    assert lines["time to load, s"] == ("0.5", "at most 0.7", "yes")
    assert lines["nano: from the command to its first letter, s"] == ("not measured", "at most 1", "")


def test_the_page_has_the_machine_the_bound_and_every_engine() -> None:
    engine = engine_summary([measured(60, idle_cpu_s=0.0)]) | {"agreement": {"same_model": True}}
    result = {
        "machine": {"cpu": "A CPU", "cores": 2},
        "checkpoint": {"parameters": 407e6, "weight_bytes": 420e6},
        "bandwidth": {"gb_per_s_by_round": [29.0, 31.5], "bound_tokens_per_s": 75.0},
        "versions": {"peers": {"ctranslate2": "4.8.5"}},
        "threads": 2,
        "rounds": 3,
        "command": "make bench-peers",
        "engines": {"mothertongue": engine, "llamacpp_q8_0": engine},
        "figures": [demand.as_dict() for demand in demands({})],
    }
    page = peers_on(result)
    for words in ("2 cores of A CPU", "407 M", "31.5 GB/s", "allow 75 tokens/s", "ctranslate2 4.8.5"):
        assert words in page
    assert "| llama.cpp Q8_0 | 100 | 50 | 60.0 | 10.0 |" in page


def test_times_are_counted_from_the_prompt_and_from_the_first_token() -> None:
    written = Written(start_s=10.0, tokens=[7, 8, 9], times_s=[12.0, 12.5, 13.0])
    assert (written.first_s, written.tokens_per_s) == (2.0, 2.0)


def test_a_near_tie_is_the_same_model_and_another_token_is_not() -> None:
    logits = np.zeros((3, 1000), np.float32)
    logits[:, 5], logits[:, 6], logits[:, 7] = 10.0, 9.95, 2.0
    same = verdict(logits, [5, 6, 5])
    assert (same["first_choices"], same["near_ties"], same["same_model"]) == (2, 1, True)
    assert not verdict(logits, [5, 7, 5])["same_model"]


def test_logits_that_prefer_nothing_prove_nothing() -> None:
    flat = np.tile(np.array([1.0, -1.0], np.float32), (2, 500))
    assert not verdict(flat, [0, 0])["same_model"]


def test_every_engine_gets_the_same_prompt() -> None:
    ids = prompt_ids(8, 1024)
    assert ids == prompt_ids(8, 1024)
    assert set(ids) == set(range(8))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux")
def test_memory_is_read_in_units_of_1024_bytes() -> None:
    held = np.ones(64 << 20, np.uint8)
    assert status_kb("VmHWM") >= status_kb("RssAnon") >= held.nbytes / 1024


def test_a_report_is_the_last_line_whatever_a_library_printed_before() -> None:
    assert read_report('loading ...\n{"load_s": 1.0}\n') == {"load_s": 1.0}
    for output in ("", "Segmentation fault", "[1, 2]"):
        with pytest.raises(MeasurementFailed, match="no report"):
            read_report(output)


def test_a_process_that_fails_is_named_with_its_last_line() -> None:
    task = {"engine": "nobody", "path": "", "threads": 1, "vocabulary": 8}
    with pytest.raises(MeasurementFailed, match="speed ended with 1: KeyError: 'nobody'"):
        run_child(Path(sys.executable), "speed", task)


def test_engines_take_turns_and_a_failing_peer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []

    def one_round(contestant: Contestant, vocabulary: int, *, first: bool) -> dict[str, object]:
        turns.append((contestant.name, first))
        if contestant.name == "broken":
            raise MeasurementFailed("it broke")
        return measured(60)

    monkeypatch.setattr(rounds, "one_round", one_round)
    monkeypatch.setattr(rounds, "read_bandwidth", lambda threads: 3e10)
    contestants = [
        Contestant(name=name, engine="llamacpp", path="", python=Path(), threads=2)
        for name in ("one", "broken", "two")
    ]
    found, bandwidths = run_rounds(contestants, vocabulary=8, rounds=2, threads=2, say=lambda text: None)
    assert turns == [("one", True), ("broken", True), ("two", True), ("one", False), ("two", False)]
    assert {name: len(rows) for name, rows in found.items()} == {"one": 2, "two": 2}
    assert bandwidths == [3e10, 3e10]
    ours = [Contestant(name="broken", engine="mothertongue", path="", python=Path(), threads=2)]
    with pytest.raises(MeasurementFailed, match="it broke"):
        run_rounds(ours, vocabulary=8, rounds=1, threads=2, say=lambda text: None)


def test_settings_of_threads_do_not_reach_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert not {"OMP_NUM_THREADS", "PYTHONDONTWRITEBYTECODE"} & set(child_environment())


def make_checkpoint(folder: Path) -> Path:
    """A folder with everything but weights that mean anything."""
    from tokenizers import models

    from mothertongue.tokenizer import SPECIAL_TOKENS, byte_alphabet
    from mothertongue_trainer.vocabulary import byte_level_tokenizer

    folder.mkdir()
    entries = [*SPECIAL_TOKENS, *byte_alphabet()]
    tokenizer = byte_level_tokenizer(models.BPE({entry: number for number, entry in enumerate(entries)}, []))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    template = {"chat_template": "{{ messages }}", "bos_token": "<|bos|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(template), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(entries)}), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_the_staged_checkpoint_has_a_tokenizer_that_every_converter_reads(tmp_path: Path) -> None:
    checkpoint, staged = make_checkpoint(tmp_path / "মডেল ১"), tmp_path / "staged"
    stage(checkpoint, staged)
    stage(checkpoint, staged)  # a second time takes the place of the first
    entries = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    assert read_gguf_tokenizer(staged, entries).pre == "qwen35"
    settings = json.loads((staged / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert (staged / "model.safetensors").read_bytes() == b"weights"
    assert not (checkpoint / "tokenizer.json").is_symlink()


def test_files_of_another_checkpoint_are_never_measured(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "one")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "source.json").write_text("{}", encoding="utf-8")
    with pytest.raises(OtherCheckpoint, match="another checkpoint"):
        convert(
            checkpoint,
            tmp_path / "models",
            Environments(peers=Path(sys.executable)),
            bundle=None,
            say=lambda text: None,
        )


def test_a_converter_that_fails_leaves_no_file_and_says_why(tmp_path: Path) -> None:
    checkpoint, target = make_checkpoint(tmp_path / "one"), tmp_path / "model.gguf"
    stage(checkpoint, tmp_path / "checkpoint")
    target.write_bytes(b"half")
    with pytest.raises(ConversionFailed, match=r"llamacpp: .*CheckpointError"):
        run_converter("llamacpp", checkpoint, target, Environments(peers=Path(sys.executable)))
    assert not target.exists()


def test_bad_folders_are_usage_errors_of_one_line(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    run = CliRunner().invoke(main, ["--peers", str(tmp_path)])
    assert run.exit_code == 2
    assert "make bench-peers" in run.output
    python.parent.mkdir()
    python.touch()
    checkpoint = make_checkpoint(tmp_path / "one")
    for found, options in {
        "no config.json": ["--checkpoint", str(tmp_path)],
        "no manifest.json": ["--checkpoint", str(checkpoint), "--bundle", str(tmp_path)],
        "4096 threads": ["--checkpoint", str(checkpoint), "--threads", "4096"],
    }.items():
        run = CliRunner().invoke(main, ["--peers", str(tmp_path), *options])
        assert (run.exit_code, found in run.output) == (2, True), run.output


def test_the_quality_of_nano_is_that_of_its_worst_language(tmp_path: Path) -> None:
    assert nano_quality(tmp_path) == {}
    languages = {"bn": {"increase_percent": 0.1}, "en": {"increase_percent": -0.2}}
    (tmp_path / "parity.json").write_text(json.dumps({"languages": languages}), encoding="utf-8")
    assert nano_quality(tmp_path) == {"bits_per_byte_increase_percent": 0.1}


def test_a_machine_is_a_part_of_a_file_name() -> None:
    cpu = "Intel(R) Core(TM) i7-1165G7 @ 2.80GHz"
    device = Device(system="", cpu=cpu, int8_flags=(), memory_bytes=None, python="")
    assert slug(device).startswith("intel-core-i7-1165g7-2-80ghz-")

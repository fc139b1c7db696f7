import os
import time
from pathlib import Path

import pytest

from mothertongue import bench
from mothertongue.bench import busy_processes, measure, timing


def test_a_timing_has_the_median_and_the_95th_percentile() -> None:
    found = timing(10, [float(ms) for ms in range(1, 102)])
    assert (found.median_ms, found.p95_ms) == (51.0, 96.0)
    assert found.tokens_per_second == pytest.approx(10 / 0.051)


def test_the_report_agrees_with_itself(bundle: Path) -> None:
    report = measure(bundle, threads=1)
    assert (report.threads.count, report.decode.tokens, report.busy_processes) == (1, 1, 0)
    (prefill,) = report.prefill  # both lengths are more than half of this context
    assert prefill.tokens == 32
    assert report.weight_bytes == sum(
        (bundle / name).stat().st_size for name in ("model.onnx", "model.onnx.data")
    )
    assert report.bandwidth_bound_tokens_per_second == pytest.approx(
        report.read_bandwidth_bytes_per_second / report.weight_bytes
    )
    assert report.percent_of_bandwidth_bound == pytest.approx(
        100 * report.decode.tokens_per_second / report.bandwidth_bound_tokens_per_second
    )
    assert 0 < prefill.median_ms <= report.time_to_first_token.median_ms
    assert 0 < report.decode.median_ms <= report.decode.p95_ms


def test_busy_processes_are_busy_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    popen = bench.subprocess.Popen

    def start(command: list[str]) -> object:
        started.append(popen(command))
        return started[-1]

    monkeypatch.setattr(bench.subprocess, "Popen", start)
    with busy_processes(2):
        time.sleep(0.5)
        used_s = [cpu_seconds(process.pid) for process in started]
    assert len(used_s) == 2
    assert min(used_s) > 0
    assert all(process.returncode is not None for process in started)


def cpu_seconds(process_id: int) -> float:
    """User time of a process, column 14 of proc(5)."""
    stat = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8")
    return int(stat.rpartition(")")[2].split()[11]) / os.sysconf("SC_CLK_TCK")


def test_a_report_beside_other_work_says_so(bundle: Path) -> None:
    report = measure(bundle, threads=1, busy=1)
    assert report.busy_processes == 1
    assert report.rows()["beside it"] == "1 busy process"

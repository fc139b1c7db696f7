from pathlib import Path

import pytest

from mothertongue.bench import measure, timing


def test_a_timing_has_the_median_and_the_95th_percentile() -> None:
    found = timing(10, [float(ms) for ms in range(1, 102)])
    assert (found.median_ms, found.p95_ms) == (51.0, 96.0)
    assert found.tokens_per_second == pytest.approx(10 / 0.051)


def test_the_report_agrees_with_itself(bundle: Path) -> None:
    report = measure(bundle, threads=1)
    assert (report.threads.count, report.prefill.tokens, report.decode.tokens) == (1, 32, 1)
    assert report.weight_bytes == sum(
        (bundle / name).stat().st_size for name in ("model.onnx", "model.onnx.data")
    )
    assert report.bandwidth_bound_tokens_per_second == pytest.approx(
        report.read_bandwidth_bytes_per_second / report.weight_bytes
    )
    assert report.percent_of_bandwidth_bound == pytest.approx(
        100 * report.decode.tokens_per_second / report.bandwidth_bound_tokens_per_second
    )
    assert 0 < report.prefill.median_ms <= report.time_to_first_token.median_ms
    assert 0 < report.decode.median_ms <= report.decode.p95_ms

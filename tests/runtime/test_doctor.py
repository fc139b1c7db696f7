from pathlib import Path

import pytest

from mothertongue import doctor
from mothertongue.doctor import Finding, examine


def by_name(folder: Path | None = None) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(folder)}


def test_a_sound_machine_and_bundle_are_good(bundle: Path) -> None:
    findings = by_name(bundle)
    assert list(findings) == ["python", "onnxruntime", "cpu", "threads", "disk", "bundle", "answer"]
    assert all(finding.good for finding in findings.values())
    assert "tokens/s" in findings["answer"].found


def test_without_a_bundle_only_the_machine_is_examined() -> None:
    assert list(by_name()) == ["python", "onnxruntime", "cpu", "threads", "disk"]


def test_an_altered_bundle_is_bad_and_says_what_to_do(copied: Path) -> None:
    (copied / "model.onnx.data").write_bytes(b"x")
    findings = by_name(copied)
    assert not findings["bundle"].good
    assert not findings["answer"].good
    assert "copy or export the bundle again" in findings["bundle"].remedy


def test_a_missing_bundle_is_bad(tmp_path: Path) -> None:
    finding = by_name(tmp_path / "none" / "nano")["bundle"]
    assert not finding.good
    assert "make chat" in finding.remedy


@pytest.mark.parametrize(
    ("name", "constant", "value"),
    [
        ("python", "MINIMUM_PYTHON", (99, 0)),
        ("onnxruntime", "MINIMUM_ONNXRUNTIME", "99.0"),
        ("disk", "MINIMUM_FREE_BYTES", 1 << 60),
    ],
)
def test_what_is_not_enough_is_bad(
    monkeypatch: pytest.MonkeyPatch, name: str, constant: str, value: object
) -> None:
    monkeypatch.setattr(doctor, constant, value)
    finding = by_name()[name]
    assert not finding.good
    assert finding.remedy

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from mothertongue import Manifest, doctor
from mothertongue.doctor import Finding, examine

MACHINE = ["python", "onnxruntime", "packages", "cpu", "threads", "load", "disk"]


@pytest.fixture(autouse=True)
def short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LOOK_S", 0.01)


def by_name(folder: Path | None = None) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(folder)}


def test_a_sound_machine_and_bundle_are_good(bundle: Path) -> None:
    findings = by_name(bundle)
    assert list(findings) == [*MACHINE, "bundle", "golden", "answer"]
    assert all(finding.good for finding in findings.values())
    assert "tokens/s" in findings["answer"].found


def test_without_a_bundle_only_the_machine_is_examined() -> None:
    assert list(by_name()) == MACHINE


def test_versions_and_hash_are_those_installed(bundle: Path) -> None:
    findings = by_name(bundle)
    assert f"numpy {np.__version__}" in findings["packages"].found
    assert Manifest.read(bundle).model_sha256[:12] in findings["bundle"].found


def test_a_processor_without_8_bit_instructions_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = dataclasses.replace(doctor.describe_device(), int8_flags=())
    monkeypatch.setattr(doctor, "describe_device", lambda: plain)
    monkeypatch.setattr(doctor.platform, "system", lambda: "Linux")
    finding = by_name()["cpu"]
    assert not finding.good
    assert "AVX2" in finding.remedy


def test_a_missing_package_is_bad_and_comes_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "no-such-package"))
    finding = by_name()["packages"]
    assert (finding.good, finding.remedy) == (False, "install with: pip install no-such-package")


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

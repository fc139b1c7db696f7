from pathlib import Path

from mothertongue.device import describe_device, memory_bytes, peak_memory_bytes, read_bandwidth

X86 = "processor\t: 0\nmodel name\t: A Fine CPU\nflags\t\t: fpu sse2 avx2 avx512_vnni\n\nprocessor\t: 1\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\n"


def test_the_flags_that_matter_are_found(tmp_path: Path) -> None:
    (tmp_path / "x86").write_text(X86, encoding="utf-8")
    (tmp_path / "arm").write_text(ARM, encoding="utf-8")
    device = describe_device(tmp_path / "x86")
    assert (device.cpu, device.int8_flags) == ("A Fine CPU", ("avx512_vnni", "avx2"))
    assert describe_device(tmp_path / "arm").int8_flags == ("i8mm", "asimddp")


def test_a_system_without_cpuinfo_is_described_all_the_same(tmp_path: Path) -> None:
    device = describe_device(tmp_path / "none")
    assert device.cpu
    assert device.int8_flags == ()


def test_the_process_uses_less_memory_than_the_machine_has() -> None:
    peak, machine = peak_memory_bytes(), memory_bytes()
    assert peak is not None
    assert machine is not None
    assert 10e6 < peak < machine


def test_the_bandwidth_of_memory_is_plausible() -> None:
    # From a single-board computer to a server with many channels.
    assert 0.5e9 < read_bandwidth(1) < 2000e9

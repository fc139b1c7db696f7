from pathlib import Path

import pytest

from mothertongue import threads
from mothertongue.threads import choose_threads, cpu_quota


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "allowed_cpus", lambda: set(range(8)))


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def siblings(*groups: str) -> dict[str, str]:
    return {f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": g for i, g in enumerate(groups)}


def test_without_any_limit_every_allowed_cpu_is_used(tmp_path: Path) -> None:
    assert choose_threads(root=tmp_path).count == 8


def test_two_threads_of_one_core_count_once(tmp_path: Path) -> None:
    write(tmp_path, siblings("0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"))
    choice = choose_threads(root=tmp_path)
    assert (choice.count, choice.reason) == (4, "8 CPUs allowed, 4 physical cores")


@pytest.mark.parametrize(
    ("text", "count"), [("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("max 100000", 8)]
)
def test_a_quota_of_version_2_rounds_down(tmp_path: Path, text: str, count: int) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": text})
    assert choose_threads(root=tmp_path).count == count


def test_the_quota_of_a_group_above_counts(tmp_path: Path) -> None:
    groups = {"sys/fs/cgroup/a/b/cpu.max": "max 100000", "sys/fs/cgroup/a/cpu.max": "300000 100000"}
    write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", **groups})
    assert choose_threads(root=tmp_path).count == 3


def test_a_container_sees_its_quota_at_the_root(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/../host\n", "sys/fs/cgroup/cpu.max": "200000 100000"})
    assert cpu_quota(tmp_path) == 2


@pytest.mark.parametrize(("quota", "count"), [("150000", 1), ("400000", 4), ("-1", 8)])
def test_a_quota_of_version_1_rounds_down(tmp_path: Path, quota: str, count: int) -> None:
    folder = "sys/fs/cgroup/cpu/job"
    files = {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": "100000"}
    write(tmp_path, {"proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/job\n", **files})
    assert choose_threads(root=tmp_path).count == count


def test_an_explicit_number_wins_and_is_said(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000"})
    choice = choose_threads(6, root=tmp_path)
    assert (choice.count, choice.reason) == (6, "as asked")


def test_more_threads_than_cpus_are_clamped_and_that_is_said(tmp_path: Path) -> None:
    choice = choose_threads(12, root=tmp_path)
    assert (choice.count, choice.reason) == (8, "12 asked, 8 CPUs allowed")


def test_fewer_than_one_thread_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        choose_threads(0)

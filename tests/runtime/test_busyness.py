import os
import time
from pathlib import Path

import pytest

from mothertongue import busyness
from mothertongue.busyness import REST_S, SpinPolicy, Watch, busy_seconds

TICKS = os.sysconf("SC_CLK_TCK")


def write_stat(root: Path, *cpus: tuple[int, ...]) -> None:
    """Write /proc/stat; columns: user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice."""
    lines = ["cpu  1 2 3 4", *(f"cpu{n} {' '.join(map(str, columns))}" for n, columns in enumerate(cpus))]
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/stat").write_text("\n".join([*lines, "intr 5"]) + "\n", encoding="utf-8")


def test_everything_but_idle_waiting_and_guests_counts_as_busy(tmp_path: Path) -> None:
    write_stat(tmp_path, (1, 2, 3, 1000, 1000, 4, 5, 6, 99, 99), (10, 0, 0, 500, 0, 0, 0, 0, 0, 0))
    assert busy_seconds(tmp_path / "proc/stat", {0}) == 21 / TICKS
    assert busy_seconds(tmp_path / "proc/stat", {0, 1}) == 31 / TICKS


@pytest.mark.parametrize("cpus", [{2}, {0, 2}])
def test_a_cpu_that_the_system_does_not_list_is_not_known(tmp_path: Path, cpus: set[int]) -> None:
    write_stat(tmp_path, (1, 0, 0, 0), (1, 0, 0, 0))
    assert busy_seconds(tmp_path / "proc/stat", cpus) is None
    assert busy_seconds(tmp_path / "none", {0}) is None


def test_what_this_process_takes_is_not_taken_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busyness, "allowed_cpus", lambda: {0, 1})
    now = {"wall": 100.0, "own": 5.0}
    monkeypatch.setattr(time, "monotonic", lambda: now["wall"])
    monkeypatch.setattr(time, "process_time", lambda: now["own"])
    write_stat(tmp_path, (0, 0, 0, 0), (0, 0, 0, 0))
    watch = Watch(root=tmp_path)
    now.update(wall=102.0, own=6.0)
    assert watch.age_s == 2.0
    # Both CPUs were busy for 1.5 s each, to a tick; one second of it is our own.
    write_stat(tmp_path, (3 * TICKS // 2, 0, 0, 0), (3 * TICKS // 2, 0, 0, 0))
    assert watch.others() == pytest.approx(1.0 - 1 / TICKS)
    now.update(wall=103.0, own=8.0)  # counters that lag behind are no negative load
    assert watch.others() == 0.0
    (tmp_path / "proc/stat").unlink()
    assert watch.others() is None


def policy(threads: int = 2, cpus: int = 2, quota: float | None = None) -> SpinPolicy:
    return SpinPolicy(threads=threads, cpus=cpus, quota=quota)


@pytest.mark.parametrize(
    ("others", "spinning", "wanted"),
    [
        (0.0, False, True),
        (0.2, False, True),
        (0.3, False, False),  # on the edge things stay as they are
        (0.4, True, True),
        (0.5, True, False),
        (1.0, True, False),
        (None, True, False),
    ],
)
def test_threads_spin_while_each_has_a_free_cpu(others: float | None, spinning: bool, wanted: bool) -> None:
    assert policy().wanted(others, spinning=spinning, now_s=0) == wanted


def test_cpus_to_spare_leave_room_for_others() -> None:
    assert policy(threads=2, cpus=4).wanted(2.0, spinning=False, now_s=0)
    assert not policy(threads=2, cpus=4).wanted(3.0, spinning=True, now_s=0)


@pytest.mark.parametrize("never", [policy(threads=1), policy(quota=2.0)])
def test_one_thread_or_a_quota_never_spins(never: SpinPolicy) -> None:
    assert not never.wanted(0.0, spinning=False, now_s=0)


def test_threads_that_ceased_to_spin_rest_first() -> None:
    rested = policy()
    assert not rested.wanted(1.0, spinning=True, now_s=100)
    assert not rested.wanted(0.0, spinning=False, now_s=100 + REST_S - 1)
    assert rested.wanted(0.0, spinning=False, now_s=100 + REST_S)

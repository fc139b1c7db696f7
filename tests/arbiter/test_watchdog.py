import threading
import time

import pytest
from zoo import ZooRun

from mothertongue_arbiter.certificate import Check, NotRun, Verdict
from mothertongue_arbiter.watchdog import Watchdog


@pytest.fixture
def expired():
    """A watchdog, the certificates that it issues, and an event for the first."""

    def start(seconds=0.2):
        issued, happened = [], threading.Event()

        def note(certificate):
            issued.append(certificate)
            happened.set()

        return Watchdog(seconds, step=0, expired=note), issued, happened

    return start


def test_the_check_that_hangs_is_named_and_what_was_answered_before_is_kept(expired):
    watchdog, issued, happened = expired()
    passed = Check(name="labels", verdict=Verdict.PASS, evidence="as declared")
    absent = NotRun(name="ranks", reason="one rank")
    run = ZooRun()
    with watchdog:
        watchdog.opened(run)
        for answer in (passed, absent):
            watchdog.answered(answer)
        watchdog.begins("causality")
        assert happened.wait(10)
    (certificate,) = issued
    assert certificate.verdict == "INCONCLUSIVE"
    assert [check.name for check in certificate.checks] == ["labels", "causality"]
    assert "0.2 s (--time-limit)" in certificate.checks[1].evidence
    assert [one.name for one in certificate.not_run] == ["ranks", "all after causality"]
    assert certificate.shapes["norm"] == (32,)
    assert certificate.dtypes["norm"] == "float32"


def test_one_check_may_take_half_of_the_time_and_all_of_them_the_whole(expired):
    watchdog, issued, happened = expired(seconds=1.0)
    begin = time.monotonic()
    with watchdog:
        while not happened.is_set() and time.monotonic() - begin < 10:
            watchdog.begins("quick")
            time.sleep(0.01)
    assert time.monotonic() - begin >= 1.0
    assert issued[0].checks[-1].name == "quick"
    watchdog, issued, happened = expired(seconds=1.0)
    begin = time.monotonic()
    with watchdog:
        assert happened.wait(10)
    assert 0.5 <= time.monotonic() - begin < 1.0


def test_an_audit_that_ends_in_time_is_left_alone(expired):
    watchdog, issued, _ = expired()
    with watchdog:
        pass
    time.sleep(0.3)
    assert issued == []

import signal

import pytest

from mothertongue_trainer.interruption import StopRequest


def test_the_first_signal_asks_and_the_second_stops() -> None:
    with StopRequest() as stop:
        assert not stop.requested
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_handlers_are_as_before_afterwards(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopRequest():
        assert signal.getsignal(number) != before
    assert signal.getsignal(number) == before

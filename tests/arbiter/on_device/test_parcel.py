import torch

from mothertongue_arbiter.torch.on_device.parcel import DeviceClock, Parcel


def test_on_a_cpu_a_parcel_is_there_at_once_and_in_order():
    one = torch.arange(3)
    parcel = Parcel([one, None])
    assert parcel.has_arrived
    opened = parcel.open()
    assert torch.equal(opened[0], one)
    assert opened[1] is None


def test_on_a_cpu_no_time_passes_unseen_by_the_host():
    with DeviceClock(torch.device("cpu")) as clock:
        pass
    assert clock.seconds == 0.0

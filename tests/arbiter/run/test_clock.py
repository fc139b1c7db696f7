import time

import torch

from mothertongue_arbiter.torch.run.clock import seconds_of


def test_an_action_is_timed():
    assert 0.02 <= seconds_of(lambda: time.sleep(0.02), torch.device("cpu")) < 0.5

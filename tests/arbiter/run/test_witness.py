import pytest
import torch
from zoo import ZooRun

from mothertongue_arbiter.direction import Direction

SMALL = 1e-6


def test_moving_along_the_gradient_raises_the_loss_as_predicted(exact):
    witness = exact(ZooRun()).witness
    direction = Direction(seed=0, scales={"blocks.0.q.weight": 0.1}, along="gradient")
    predicted, _ = witness.slope(direction)
    measured = (witness.loss_at(direction, SMALL) - witness.loss_at(direction, -SMALL)) / (2 * SMALL)
    assert predicted > 0
    assert measured == pytest.approx(predicted, rel=1e-4)


def test_parameters_come_back_bit_for_bit(exact):
    run = ZooRun()
    witness = exact(run).witness
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    witness.loss_at(Direction(seed=0, scales=dict.fromkeys(witness.names(), 0.3)), 0.1)
    assert all(map(torch.equal, before, run.model.parameters()))


def test_zeros_move_only_where_the_gradient_is_zero(exact):
    run = ZooRun(tied=False)
    subject = exact(run)
    direction = Direction(seed=0, scales={"embedding.weight": 1.0}, along="zeros")
    before = run.model.embedding.weight.detach().clone()
    with subject.witness.moved_by(direction, 1.0):
        moved = (run.model.embedding.weight != before).any(1)
    used = set(subject.ids.flatten().tolist())
    assert {row for row in range(48) if not moved[row]} == used & {row for row in range(48) if not moved[row]}
    assert not {row for row in range(48) if moved[row]} & set(subject.ids[:, 0].tolist())


def test_tensors_are_in_forward_order(exact):
    names = exact(ZooRun()).witness.names()
    assert (names[0], names[-1]) == ("embedding.weight", "norm")
    assert (
        names.index("blocks.0.q.weight") < names.index("blocks.0.o.weight") < names.index("blocks.1.q.weight")
    )

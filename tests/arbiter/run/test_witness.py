import pytest
import torch
from zoo import ZooRun

from mothertongue_arbiter import Declared, audit
from mothertongue_arbiter.declared_optimizer import Group, Optimizer
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


class ComplexRun:
    """A recurrence with complex rates, as in a state space model; the gradient of one part may be turned."""

    def __init__(self, turned=False):
        torch.manual_seed(0)
        self.model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(9, 4), "head": torch.nn.Linear(4, 9)})
        self.model.rate = torch.nn.Parameter(torch.randn(4, dtype=torch.complex64) * 0.3)
        if turned:
            self.model.rate.register_hook(lambda gradient: gradient.conj())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.0)
        self.declared = Declared(optimizer=Optimizer(groups=(Group(parameters=("*",), learning_rate=1e-3),)))

    def batch(self, step):
        return torch.randint(9, (2, 8), generator=torch.Generator().manual_seed(step))

    def forward(self, model, batch):
        state, x = 0, model["embed"](batch)
        states = [state := state * model.rate + x[:, t] for t in range(batch.shape[1])]
        return model["head"](torch.stack(states, 1).real)

    def loss(self, model, batch):
        return torch.nn.functional.cross_entropy(self.forward(model, batch)[:, :-1].mT, batch[:, 1:])

    def train_step(self, step):
        self.optimizer.zero_grad()
        self.loss(self.model, self.batch(step)).backward()
        self.optimizer.step()


@pytest.mark.parametrize(("turned", "verdict"), [(False, "PASS"), (True, "FAIL")])
def test_complex_weights_are_judged_as_pairs_of_numbers(turned, verdict):
    checks = {check.name: check for check in audit(ComplexRun(turned)).checks}
    assert checks["gradient values"].verdict == verdict
    # The optimizer of torch itself refuses the turned one.
    for name in () if turned else ("gradient handed over", "update parity", "movement", "own precision"):
        assert checks[name].verdict == "PASS", checks[name]


class PaddedRun:
    """Rows with padding on the left, whose last one learns the first token; its embedding learns nothing."""

    def __init__(self, padding_idx=0, pad_token=0):
        torch.manual_seed(0)
        embed = torch.nn.Embedding(9, 4, padding_idx=padding_idx)
        torch.nn.init.normal_(embed.weight)
        self.model = torch.nn.ModuleDict({"embed": embed, "head": torch.nn.Linear(4, 9)})
        self.declared = Declared(pad_token=pad_token, order_matters=False, supervised="some")

    def batch(self, step):
        ids = torch.randint(1, 9, (2, 8), generator=torch.Generator().manual_seed(step))
        ids[:, :3] = 0
        return ids

    def forward(self, model, batch):
        return model["head"](model["embed"](batch).cumsum(1).tanh())

    def loss(self, model, batch):
        labels = batch[:, 1:].masked_fill(batch[:, 1:] == 0, -100)
        return torch.nn.functional.cross_entropy(self.forward(model, batch)[:, :-1].mT, labels)


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [({}, "PASS"), ({"padding_idx": 5}, "FAIL"), ({"pad_token": None}, "FAIL")],
)
def test_only_the_embedding_of_declared_padding_may_get_no_gradient(facts, verdict):
    checks = {check.name: check for check in audit(PaddedRun(**facts)).checks}
    assert checks["dead elements"].verdict == verdict, checks["dead elements"]
    if verdict == "PASS":
        assert checks["gradient values"].verdict == "PASS"

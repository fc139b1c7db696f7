import numpy as np
import pytest

from mothertongue_arbiter.certificate import Verdict
from mothertongue_arbiter.direction import signs
from mothertongue_arbiter.judgement import Judge, named, off_by
from mothertongue_arbiter.run import Declared


class Chain:
    """sum over tensors of (w . x)^2 + w . x, with gradients that can be spoiled."""

    seed = 0

    def __init__(self, *, severed=(), wrong=(), unused=()):
        rng = np.random.default_rng(0)
        self.values = {f"t{i}": rng.normal(size=6) for i in range(8)}
        self.unused = unused
        self.gradients = {name: 2 * value + 1 for name, value in self.values.items()}
        for name in wrong:
            self.gradients[name] = self.gradients[name] * 0.9
        for name in (*severed, *unused):
            self.gradients[name] = None

    def names(self):
        return list(self.values)

    def scale(self, name):
        return 1.0

    def gradient_norm(self, name):
        gradient = self.gradients[name]
        return None if gradient is None else float(np.linalg.norm(gradient))

    def step(self, direction, name):
        if direction.along == "gradient":
            return self.gradients[name]
        return signs(direction.seed, name, 6) * direction.scales[name]

    def loss_at(self, direction, epsilon):
        total = 0.0
        for name, value in self.values.items():
            moved = value + epsilon * self.step(direction, name) if name in direction.scales else value
            total += 0.0 if name in self.unused else float((moved**2 + moved).sum())
        return total

    def slope(self, direction):
        parts = [
            self.gradients[name] * self.step(direction, name)
            for name in direction.scales
            if self.gradients[name] is not None
        ]
        flat = np.concatenate(parts) if parts else np.zeros(1)
        return float(flat.sum()), float(np.linalg.norm(flat))


def judge(step=0, declared=None, **spoiled):
    return Judge(Chain(**spoiled), declared or Declared(), step=step)


def subjects(check):
    return [finding.subject for finding in check.findings]


def test_right_gradients_pass():
    assert judge().presence().verdict == Verdict.PASS
    assert judge().values().verdict == Verdict.PASS


def test_wrong_gradients_are_listed_nearest_the_loss_first():
    check = judge(wrong=("t1", "t5")).values()
    assert check.verdict == Verdict.FAIL
    assert subjects(check) == ["t5", "t1"]
    assert check.cause == "a wrong backward between t5 and t6"


def test_severed_and_dead_tensors_are_told_apart():
    check = judge(severed=("t2",), unused=("t4",)).presence()
    verdicts = {finding.subject: finding.verdict for finding in check.findings}
    assert verdicts == {"t2": "SEVERED", "t4": "DEAD-HERE"}
    assert check.verdict == Verdict.FAIL


@pytest.mark.parametrize(
    ("step", "declared", "expected"),
    [
        (0, Declared(), Verdict.PASS),
        (9, Declared(), Verdict.FAIL),
        (9, Declared(conditional=("t4",)), Verdict.PASS),
        (9, Declared(frozen=("t4",)), Verdict.PASS),
    ],
)
def test_a_dead_tensor_is_forgiven_at_first_and_later_only_when_declared(step, declared, expected):
    assert judge(step, declared, unused=("t4",)).presence().verdict == expected


def test_a_long_list_of_names_is_cut():
    assert named([f"t{i}" for i in range(9)]) == "t0, t1, t2, t3, t4, t5 and 3 more"


class Bent(Chain):
    """The same, with a ReLU in `t0` whose kink is at this very point along one of the lines."""

    bent = 0

    def loss_at(self, direction, epsilon):
        over = epsilon if direction.along == "signs" and direction.seed == self.bent else 0.0
        return super().loss_at(direction, epsilon) + max(0.0, over)


def test_a_kink_on_one_line_is_avoided_by_another():
    check = Judge(Bent(), Declared(), step=0).values()
    assert check.verdict == Verdict.PASS
    assert "after 1 that met a kink" in check.evidence


def test_a_kink_on_every_line_is_called_a_kink():
    class Everywhere(Bent):
        def loss_at(self, direction, epsilon):
            return Chain.loss_at(self, direction, epsilon) + max(0.0, epsilon)

    check = Judge(Everywhere(), Declared(), step=0).values()
    assert check.verdict == Verdict.INCONCLUSIVE
    assert "kinks" in check.evidence


def test_a_tensor_behind_a_rounding_is_severed():
    class Rounded(Chain):
        def loss_at(self, direction, epsilon):
            moved = self.values["t3"] + epsilon * signs(0, "t3", 6) * ("t3" in direction.scales)
            return super().loss_at(direction, epsilon) + float(np.round(moved * 64).sum())

    witness = Rounded(unused=("t3", "t4"))
    check = Judge(witness, Declared(), step=0).presence()
    assert check.verdict == Verdict.FAIL
    assert [one.subject for one in check.findings if one.verdict == "SEVERED"] == ["t3"]


def test_a_gradient_that_is_off_is_a_finding_with_its_distance():
    (finding,) = off_by(["w"], {"w": 0.25, "v": 0.0})
    assert (finding.subject, finding.verdict, finding.detail) == ("w", "WRONG", "off by 2.5e-01")

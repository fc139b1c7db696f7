import numpy as np
import pytest
import torch

from mothertongue_arbiter.declared_optimizer import Group
from mothertongue_arbiter.update_rules import Moments, bfloat16, newton_schulz, update

STEPS = 5


def followed(group, gradients, weight):
    """The weight after each gradient, by our rule; None stands for no gradient."""
    moments, path = Moments(), []
    for step, gradient in enumerate(gradients):
        if gradient is not None:
            done = update(group, weight, gradient, moments, rate=group.rate(step))
            weight, moments = weight + done.change, done.moments
        path.append(weight)
    return path


def by_torch(make, gradients, weight):
    """The same with an optimizer of torch, in float64."""
    parameter = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    optimizer = make([parameter])
    path = []
    for gradient in gradients:
        parameter.grad = None if gradient is None else torch.from_numpy(gradient.copy())
        optimizer.step()
        path.append(parameter.detach().numpy().copy())
    return path


@pytest.fixture
def weight():
    return np.random.default_rng(0).normal(size=(6, 4))


@pytest.fixture
def gradients():
    """Of different sizes, and one step without."""
    rng = np.random.default_rng(1)
    found = [rng.normal(size=(6, 4)) * scale for scale in (1.0, 1e-3, 10.0, 1e-6, 1.0)]
    return [*found[:2], None, *found[2:]]


ELEMENTWISE = {
    "sgd": (Group(parameters=("*",), algorithm="sgd", learning_rate=0.1), torch.optim.SGD, {}),
    "momentum": (
        Group(
            parameters=("*",),
            algorithm="sgd",
            learning_rate=0.1,
            momentum=0.9,
            dampening=0.3,
            weight_decay=0.02,
        ),
        torch.optim.SGD,
        {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.02},
    ),
    "nesterov": (
        Group(parameters=("*",), algorithm="sgd", learning_rate=0.1, momentum=0.9, nesterov=True),
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True},
    ),
    "adam": (
        Group(parameters=("*",), algorithm="adam", learning_rate=0.1, weight_decay=0.1, eps=1e-3),
        torch.optim.Adam,
        {"weight_decay": 0.1, "eps": 1e-3},
    ),
    "adamw": (
        Group(parameters=("*",), algorithm="adamw", learning_rate=0.1, weight_decay=0.1, betas=(0.8, 0.95)),
        torch.optim.AdamW,
        {"weight_decay": 0.1, "betas": (0.8, 0.95)},
    ),
}


@pytest.mark.parametrize(("group", "torch_class", "numbers"), ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_the_rule_is_that_of_torch_also_where_a_gradient_is_missing(
    group, torch_class, numbers, gradients, weight
):
    ours = followed(group, gradients, weight)
    theirs = by_torch(lambda parameters: torch_class(parameters, lr=0.1, **numbers), gradients, weight)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_lion_is_what_a_hand_computes():
    group = Group(parameters=("*",), algorithm="lion", learning_rate=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    first, second = followed(group, [np.array([2.0, -4.0]), np.array([-0.1, 0.1])], np.array([1.0, 1.0]))
    # Step 1: the sign of the gradient, and 0.1 * 0.5 of the weight; momentum 0.02 and -0.04.
    np.testing.assert_allclose(first, [1 - 0.1 - 0.05, 1 + 0.1 - 0.05], rtol=1e-15)
    # Step 2: 0.9 * 0.02 - 0.1 * 0.1 = 0.008 and 0.9 * -0.04 + 0.1 * 0.1 = -0.026 give signs + and -.
    np.testing.assert_allclose(second, [0.85 - 0.1 - 0.0425, 1.05 + 0.1 - 0.0525], rtol=1e-15)


def test_lion_says_how_much_no_precision_decides():
    group = Group(parameters=("*",), algorithm="lion", learning_rate=0.1, betas=(0.9, 0.99))
    cancelling = Moments(steps=1, first=np.array([-1.0, 1.0]))
    done = update(group, np.zeros(2), np.array([9.0, 1.0]), cancelling, rate=0.1)
    assert done.undecided == pytest.approx(0.2)  # the first element may go either way


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (8, 8)])
def test_newton_schulz_moves_the_singular_values_and_nothing_else(shape):
    matrix = np.random.default_rng(2).normal(size=shape) * 1e-3
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.linalg.norm(matrix)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    np.testing.assert_allclose(newton_schulz(matrix), (left * values) @ right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("adjust", "of_torch"), [("keller", "original"), ("moonshot", "match_rms_adamw")])
@pytest.mark.parametrize("shape", [(64, 24), (24, 64)])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_that_of_torch_up_to_its_bfloat16(adjust, of_torch, shape, nesterov):
    numbers = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.95, "nesterov": nesterov}
    group = Group(
        parameters=("*",),
        algorithm="muon",
        learning_rate=0.02,
        weight_decay=0.1,
        momentum=0.95,
        nesterov=nesterov,
        adjust=adjust,
    )
    rng = np.random.default_rng(3)
    weight, gradients = rng.normal(size=shape), [rng.normal(size=shape) for _ in range(STEPS)]
    theirs = by_torch(
        lambda parameters: torch.optim.Muon(parameters, adjust_lr_fn=of_torch, **numbers), gradients, weight
    )
    ours = followed(group, gradients, weight)
    moved = np.linalg.norm(theirs[-1] - weight)
    assert np.linalg.norm(ours[-1] - theirs[-1]) < 0.05 * moved
    far = np.linalg.norm(ours[0] - theirs[0])
    done = update(group, weight, gradients[0], Moments(), rate=0.02)
    assert 0 < far < 3 * done.undecided


def test_bfloat16_rounds_as_torch_does():
    values = np.random.default_rng(4).normal(size=1000) * 10.0 ** np.arange(-20, 20).repeat(25)
    expected = torch.from_numpy(values).float().bfloat16().double().numpy()
    np.testing.assert_array_equal(bfloat16(values.astype(np.float32)).astype(float), expected)

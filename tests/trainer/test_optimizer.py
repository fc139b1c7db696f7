import copy

import numpy as np
import pytest
import torch

from mothertongue_trainer.model import Qwen3
from mothertongue_trainer.optimizer import MuonAdamW, build_optimizer, orthogonalize, parameter_table
from mothertongue_trainer.recipe import ModelConfig, OptimizerConfig

# torch.optim.Muon iterates in bfloat16 (8 bits), one matrix at a time; ours here in bfloat16, stacked.
# Rounding differs by a few units in the last place of directions whose entries are at most 1.
BFLOAT16_DIRECTION = 0.02
MODEL = ModelConfig(layers=2, width=32, heads=4, kv_heads=2, head_width=16, ffn_width=48, context=32)
CONFIG = OptimizerConfig(muon_weight_decay=0.1, adamw_weight_decay=0.1)


def model_with_gradients(*, tied: bool = True, dtype: torch.dtype = torch.float32) -> Qwen3:
    config = ModelConfig(**{**vars(MODEL), "tied_embeddings": tied})
    model = Qwen3(config, 300, seed=1, compute_dtype=dtype)
    give_gradients(model, seed=0)
    return model


def give_gradients(model: torch.nn.Module, *, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_muon_equals_torch_on_the_same_gradients() -> None:
    ours, theirs = (model_with_gradients(dtype=torch.bfloat16) for _ in range(2))
    optimizer = build_optimizer(ours, CONFIG)
    matrices = [p for name, p in theirs.named_parameters() if p.ndim == 2 and "embed" not in name]
    reference = torch.optim.Muon(
        matrices, lr=CONFIG.muon_learning_rate, momentum=CONFIG.muon_momentum, weight_decay=0.1
    )
    for step in range(3):
        for model in (ours, theirs):
            give_gradients(model, seed=step)
        optimizer.step()
        reference.step()
    started = dict(Qwen3(MODEL, 300, seed=1).named_parameters())
    named = dict(theirs.named_parameters())
    compared = 0
    for name, parameter in ours.named_parameters():
        if parameter.ndim == 2 and "embed" not in name:
            moved = (parameter - started[name]) / CONFIG.muon_learning_rate
            expected = (named[name] - started[name]) / CONFIG.muon_learning_rate
            assert expected.norm() > 1
            torch.testing.assert_close(moved, expected, atol=3 * BFLOAT16_DIRECTION, rtol=0)
            compared += 1
    assert compared == 14


@pytest.mark.parametrize("tied", [True, False])
def test_adamw_equals_its_formula_in_float64(tied: bool) -> None:
    model = model_with_gradients(tied=tied)
    table = {row.name: row for row in parameter_table(model, CONFIG) if row.rule == "adamw"}
    beta1, beta2 = CONFIG.adamw_betas
    expected = {name: p.detach().double().numpy().copy() for name, p in model.named_parameters()}
    first, second = ({name: np.zeros_like(value) for name, value in expected.items()} for _ in range(2))
    optimizer = build_optimizer(model, CONFIG)
    for step in range(1, 4):
        give_gradients(model, seed=step)
        optimizer.step()
        for name, parameter in model.named_parameters():
            if name not in table:
                continue
            gradient = parameter.grad.double().numpy()
            first[name] = beta1 * first[name] + (1 - beta1) * gradient
            second[name] = beta2 * second[name] + (1 - beta2) * gradient**2
            update = first[name] / (1 - beta1**step)
            update /= np.sqrt(second[name] / (1 - beta2**step)) + CONFIG.adamw_eps
            rate, decay = table[name].learning_rate, 0.1 if name == "lm_head.weight" else 0.0
            expected[name] = expected[name] * (1 - rate * decay) - rate * update
    for name, parameter in model.named_parameters():
        if name in table:
            np.testing.assert_allclose(parameter.detach().numpy(), expected[name], atol=1e-6, rtol=1e-5)


def test_orthogonalized_matrices_have_singular_values_near_1() -> None:
    matrices = torch.randn(5, 16, 48, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(matrices))
    assert values.min() > 0.5  # the quintic's own range: 0.68 to 1.13 for any but tiny values
    assert values.max() < 1.3


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_has_one_row_and_the_rule_of_its_kind(tied: bool) -> None:
    model = model_with_gradients(tied=tied)
    rows = parameter_table(model, CONFIG)
    assert [row.name for row in rows] == [name for name, _ in model.named_parameters()]
    assert sum(row.count for row in rows) == model.parameter_count
    for row in rows:
        embedding_or_head = "embed_tokens" in row.name or "lm_head" in row.name
        assert (row.rule == "muon") == (len(row.shape) == 2 and not embedding_or_head)
        if "norm" in row.name or "embed" in row.name:
            assert row.weight_decay == 0
    optimizer = build_optimizer(model, CONFIG)
    ids = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(ids) == sorted(map(id, model.parameters()))


def test_a_parameter_that_the_table_forgets_is_our_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    from mothertongue_trainer import optimizer

    whole = optimizer.parameter_table
    monkeypatch.setattr(optimizer, "parameter_table", lambda model, config: whole(model, config)[1:])
    with pytest.raises(AssertionError, match="embed_tokens"):
        build_optimizer(model_with_gradients(), CONFIG)


def test_learning_rates_scale_from_their_peaks() -> None:
    optimizer = build_optimizer(model_with_gradients(), CONFIG)
    optimizer.scale_learning_rates(0.5)
    optimizer.scale_learning_rates(0.25)
    rates = {group["group"]: group["lr"] for group in optimizer.param_groups}
    assert rates == {"embedding": 1e-3, "norm": 1e-3, "matrix": 5e-3}


def test_the_state_dict_restores_the_optimizer_exactly() -> None:
    def run(optimizer: MuonAdamW, model: Qwen3, seeds: range) -> None:
        for seed in seeds:
            give_gradients(model, seed=seed)
            optimizer.step()

    model = model_with_gradients()
    optimizer = build_optimizer(model, CONFIG)
    run(optimizer, model, range(3))
    other = model_with_gradients()
    other.load_state_dict(model.state_dict())
    restored = build_optimizer(other, CONFIG)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(optimizer, model, range(3, 6))
    run(restored, other, range(3, 6))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))

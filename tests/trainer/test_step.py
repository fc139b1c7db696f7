import dataclasses

import numpy as np
import pytest
import torch

from mothertongue.errors import CheckFailed
from mothertongue_trainer.model import IGNORED, Qwen3
from mothertongue_trainer.optimizer import MuonAdamW, build_optimizer
from mothertongue_trainer.recipe import ModelConfig, OptimizerConfig, TrainingConfig
from mothertongue_trainer.rows import Batch
from mothertongue_trainer.step import TensorBatch, mean_loss, take_step

MODEL = ModelConfig(layers=2, width=32, heads=2, kv_heads=1, head_width=16, ffn_width=48, context=32)
TRAINING = TrainingConfig(tokens=32 * 8 * 10, sequence_tokens=32, batch_sequences=8, warmup_steps=0)
# The same sum in another order, float32, of gradients of size 1.
FLOAT32_SUM = 1e-5


def some_batch(*, learned_share: float = 0.4) -> TensorBatch:
    """Rows in which very different numbers of positions are learned."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(300, size=(8, 32))
    shares = np.linspace(0.02, 2 * learned_share, 8)[:, None]
    targets = np.where(rng.random((8, 32)) < shares, np.roll(tokens, -1, axis=1), IGNORED)
    batch = Batch(tokens=tokens, targets=targets, documents=np.arange(32)[None] // 10 + np.zeros((8, 1), int))
    return TensorBatch.of(batch, torch.device("cpu"))


def trainee() -> tuple[Qwen3, MuonAdamW]:
    model = Qwen3(MODEL, 300, seed=0)
    return model, build_optimizer(model, OptimizerConfig())


def test_micro_batches_give_the_gradient_of_the_whole_batch() -> None:
    batch, gradients = some_batch(), []
    for micro in (None, 2, 3):
        model, optimizer = trainee()
        training = dataclasses.replace(TRAINING, micro_batch_sequences=micro, gradient_clip=None)
        result = take_step(model, optimizer, batch, training=training, step=0, steps=10)
        gradients.append([result.loss, *(parameter.grad for parameter in model.parameters())])
    for other in gradients[1:]:
        torch.testing.assert_close(other[0], gradients[0][0], atol=FLOAT32_SUM, rtol=0)
        torch.testing.assert_close(other[1:], gradients[0][1:], atol=FLOAT32_SUM, rtol=0)


def test_the_gradient_is_clipped_to_its_global_norm_and_reported_as_it_was() -> None:
    model, optimizer = trainee()
    training = dataclasses.replace(TRAINING, gradient_clip=0.01)
    result = take_step(model, optimizer, some_batch(), training=training, step=0, steps=10)
    clipped = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).norm()
    assert clipped.item() == pytest.approx(0.01, rel=1e-3)
    assert result.grad_norm > 0.1


def test_learning_one_batch_brings_its_loss_to_nothing() -> None:
    model, optimizer = trainee()
    batch = some_batch()
    for _ in range(100):
        take_step(model, optimizer, batch, training=TRAINING, step=0, steps=10**6)
    assert mean_loss(model, batch).item() < 0.2  # from ln 300 = 5.7


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ("model.layers.1.mlp.up_proj.weight", "the weight model.layers.1.mlp.up_proj.weight"),
        ("gradient of model.norm.weight", "the gradient of model.norm.weight"),
    ],
)
def test_what_is_not_finite_stops_the_run_and_changes_nothing(broken: str, named: str) -> None:
    model, optimizer = trainee()
    parameters = dict(model.named_parameters())
    if broken in parameters:
        with torch.no_grad():
            parameters[broken][0, 0] = float("nan")
    else:
        parameters["model.norm.weight"].register_hook(lambda gradient: gradient * float("inf"))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckFailed, match=f"step 5: {named} is not finite"):
        take_step(model, optimizer, some_batch(), training=TRAINING, step=4, steps=10)
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in after if name != broken)
    assert not optimizer.state

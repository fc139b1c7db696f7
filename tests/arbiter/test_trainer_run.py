import pytest
import torch
from tiny_trainer import tiny_trainer
from torch.nn import functional as F

from mothertongue_arbiter.torch.trainer_run import TrainerRun

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")  # of accelerate, about this machine


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run of a trainer at its beginning, seen from a callback."""
    from transformers import TrainerCallback

    trainer = tiny_trainer(tmp_path_factory.mktemp("trainer"), steps=1)
    seen = []

    class Look(TrainerCallback):
        def on_train_begin(self, args, state, control, **_):
            seen.append(TrainerRun(trainer))

    trainer.add_callback(Look())
    trainer.train()
    return seen[0]


def test_the_batches_are_those_that_the_trainer_will_see(run):
    assert [len(run.micro_batches(step, 0)) for step in range(3)] == [2, 2, 2]
    first = run.batch(0)
    assert first["input_ids"].shape == first["labels"].shape == first["attention_mask"].shape
    assert len(first["input_ids"]) == 4
    parts = run.micro_batches(0, 0)
    tokens = [row[row != 0].tolist() for part in parts for row in part["input_ids"]]
    assert [row[row != 0].tolist() for row in first["input_ids"]] == tokens


def test_the_loss_is_the_sum_over_all_that_is_learned_divided_by_all_labels(run):
    batch = run.batch(0)
    with torch.no_grad():
        logits = run.forward(run.model, batch).logits.double()
        loss = float(run.loss(run.model, batch))
    labels = batch["labels"]
    total = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    assert loss == pytest.approx(float(total) / int((labels != -100).sum()), rel=1e-5)
    assert "times those of the mean" in run.notes[0]


def test_what_is_declared_comes_from_the_config_and_the_arguments(run):
    declared = run.declared
    assert (declared.vocabulary, declared.causal, declared.accumulation) == (48, True, 2)
    assert set(declared.no_weight_decay) == {n for n, _ in run.model.named_parameters() if "norm" in n}
    assert declared.epoch_steps == 6  # 24 rows, 4 a step
    decayed, plain = run.declared_optimizer().groups
    assert (decayed.weight_decay, plain.weight_decay) == (0.1, 0.0)
    assert decayed.rate(0) == pytest.approx(1e-3)

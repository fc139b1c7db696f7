import importlib
import json
import logging
import sys

import pytest
import torch
from tiny_trainer import MeanOfMeans, tiny_trainer

from mothertongue_arbiter import ArbiterError, Verdict
from mothertongue_arbiter.refusal import AuditFailed
from mothertongue_arbiter.torch.transformers_callback import ArbiterCallback

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")  # of accelerate, about this machine


def certified(trainer, **options):
    callback = ArbiterCallback(trainer, **options)
    trainer.add_callback(callback)
    return callback


def severed(trainer):
    """A norm whose backward pass was forgotten."""
    norm = trainer.model.model.layers[0].post_attention_layernorm
    forward = norm.forward
    norm.forward = lambda x: forward(x.detach())
    return trainer


def test_a_healthy_training_is_certified_watched_and_not_changed(tmp_path):
    plain = tiny_trainer(tmp_path / "plain")
    plain.train()
    trainer = tiny_trainer(tmp_path / "audited")
    callback = certified(trainer)
    trainer.train()
    assert callback.certificate.verdict == Verdict.PASS
    asked = {check.name for check in callback.certificate.checks}
    assert {"gradient values", "gradient handed over", "labels", "initial loss", "movement"} <= asked
    for name in ("certificate", "monitor"):
        written = json.loads((tmp_path / "audited" / "audit" / f"{name}.json").read_text())
        assert written["verdict"] == "PASS", written
    assert callback.monitor.steps == 4
    assert "training_step" not in vars(trainer)
    torch.testing.assert_close(trainer.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)


def test_a_severed_operation_refuses_the_training_with_the_page(tmp_path):
    trainer = severed(tiny_trainer(tmp_path))
    before = {name: one.clone() for name, one in trainer.model.state_dict().items()}
    certified(trainer)
    with pytest.raises(AuditFailed) as refused:
        trainer.train()
    page = str(refused.value)
    assert "FAIL     gradient values" in page
    assert "model.layers.0.post_attention_layernorm.weight" in page
    assert json.loads((tmp_path / "audit" / "certificate.json").read_text())["verdict"] == "FAIL"
    torch.testing.assert_close(trainer.model.state_dict(), before, rtol=0, atol=0)


def test_a_mean_of_micro_batch_means_is_caught(tmp_path):
    trainer = tiny_trainer(tmp_path, MeanOfMeans)
    certified(trainer)
    with pytest.raises(AuditFailed) as refused:
        trainer.train()
    failed = [check for check in refused.value.certificate.checks if check.verdict == Verdict.FAIL]
    assert [check.name for check in failed] == ["gradient handed over"]
    assert "accumulation" in failed[0].cause


def test_one_trains_all_the_same_when_told_to(tmp_path, caplog):
    trainer = severed(tiny_trainer(tmp_path, steps=2))
    certified(trainer, despite_audit=True, monitor=False)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert trainer.state.global_step == 2
    assert "goes on without a good certificate" in caplog.text


def test_without_transformers_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    name = "mothertongue_arbiter.torch.transformers_callback"
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ArbiterError, match=r"needs transformers: pip install 'transformers\[torch\]'"):
        importlib.import_module(name)

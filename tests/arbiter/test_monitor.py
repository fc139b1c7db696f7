import json
import math

import pytest
import torch
from faults.zoo import HEALTHY
from torch import nn
from zoo import ZooRun

from mothertongue_arbiter import ArbiterError, Declared, Verdict
from mothertongue_arbiter.run import declarations
from mothertongue_arbiter.torch import monitor as monitor_module
from mothertongue_arbiter.torch.monitor import Monitor

STEPS = 24


def watched(run, *, steps=STEPS, model=None, before=lambda step: None, batch_of=None, **options):
    """Train, observe every step, and return the monitor."""
    options = {"every": 1, "budget": None, "declared": run.declared} | options
    with Monitor(model or run.model, run.optimizer, **options) as monitor:
        for step in range(steps):
            before(step)
            run.train_step(step)
            batch = run.batch(batch_of(step) if batch_of else step)
            with torch.no_grad():
                loss = run.loss(run.model, batch)
            monitor.observe(step, batch, loss)
    return monitor


def subjects(monitor, verdict):
    return {finding.subject for finding in monitor.findings if finding.verdict == verdict}


def test_a_healthy_run_is_passed_and_every_tensor_has_its_numbers():
    run = ZooRun()
    monitor = watched(run)
    assert monitor.check.verdict == Verdict.PASS, monitor.findings
    assert set(monitor.as_dict()["tensors"]) == {name for name, _ in run.model.named_parameters()}


def test_the_update_to_weight_ratio_is_that_of_float64_arithmetic():
    run = ZooRun()
    before = {name: parameter.detach().double() for name, parameter in run.model.named_parameters()}
    with Monitor(run.model, run.optimizer, every=1, budget=None) as monitor:
        monitor.observe(0)
        run.train_step(1)
        monitor.observe(1)
    for name, parameter in run.model.named_parameters():
        after = parameter.detach().double()
        exact = float((after - before[name]).norm() / after.norm())
        measured = monitor.as_dict()["tensors"][name]
        assert measured["update_to_weight"] == pytest.approx(exact, rel=0.05), name
        assert measured["gradient_norm"] == pytest.approx(float(parameter.grad.norm()), rel=1e-5), name


def test_a_tensor_that_no_optimizer_has_is_alive_but_frozen():
    run = ZooRun()
    kept = [p for name, p in run.model.named_parameters() if not name.startswith("blocks.1.")]
    run.optimizer = torch.optim.AdamW(kept, lr=1e-3)
    monitor = watched(run)
    missing = {name for name, _ in run.model.named_parameters() if name.startswith("blocks.1.")}
    assert subjects(monitor, "FROZEN") == missing
    assert monitor.check.verdict == Verdict.FAIL
    assert "in no parameter group" in monitor.check.evidence


def test_a_learning_rate_of_zero_freezes_nothing_that_could_move():
    run = ZooRun()
    run.learning_rate = lambda step: 0.0
    assert watched(run).check.verdict == Verdict.PASS


def test_bfloat16_gains_whose_update_is_below_half_an_ulp_are_named_as_lost():
    run = ZooRun()
    run.model.bfloat16()
    run.make_optimizer()
    gains = {name for name, parameter in run.model.named_parameters() if parameter.dim() == 1}
    monitor = watched(run)
    assert subjects(monitor, "LOST") == gains  # 1.0 +- 0.001 rounds to 1.0 in bfloat16
    assert "master weights" in monitor.check.evidence


def test_a_severed_tensor_is_dead_unless_it_is_declared_conditional():
    def severed(declared):
        run = ZooRun(declared=declared)
        run.model.operations.norm = lambda x, gain: x * gain.detach()
        return subjects(watched(run), "DEAD")

    gains = {name for name, _ in ZooRun().model.named_parameters() if "norm" in name}
    assert severed(Declared()) == gains
    assert severed(Declared(conditional=("*norm*",))) == set()


def test_what_is_declared_frozen_and_moves_is_named():
    run = ZooRun(declared=Declared(frozen=("blocks.0.q.weight",)))
    assert subjects(watched(run, steps=3), "MOVED") == {"blocks.0.q.weight"}


@pytest.mark.parametrize("steps_apart", [1, 5])
def test_a_repeated_batch_is_found(steps_apart):
    monitor = watched(ZooRun(), steps=10, batch_of=lambda step: step - steps_apart if step == 7 else step)
    (finding,) = [one for one in monitor.findings if one.verdict == "REPEATED"]
    assert finding.detail.startswith(f"step 7 has the rows of step {7 - steps_apart}")


def test_a_batch_may_come_again_in_the_next_epoch():
    run = ZooRun(declared=Declared(epoch_steps=6))
    assert watched(run, steps=18, batch_of=lambda step: step % 6).check.verdict == Verdict.PASS


def test_rows_that_a_batch_has_twice_are_found():
    monitor = Monitor(nn.Linear(2, 2), None)
    ids = torch.arange(40).reshape(4, 10)
    monitor.observe(0, {"input_ids": torch.cat([ids, ids])})
    assert [finding.verdict for finding in monitor.close()] == ["DUPLICATED"]


@pytest.mark.parametrize(("at", "count", "verdict"), [(5, 0.0, "RESET"), (None, 1.0, "STUCK")])
def test_a_counter_that_goes_back_or_stands_still_is_found(at, count, verdict):
    run = ZooRun()

    def tamper(step):
        if at is None or step == at:
            for state in run.optimizer.state.values():
                state["step"].fill_(count)

    names = {name for name, _ in run.model.named_parameters()}
    assert subjects(watched(run, before=tamper), verdict) == names


def test_two_updates_a_step_are_found():
    run = ZooRun()
    assert subjects(watched(run, before=run.train_step), "DOUBLE")


def test_an_optimizer_that_was_not_restored_is_found():
    run = ZooRun()
    with Monitor(run.model, run.optimizer, every=1, budget=None) as monitor:
        for step in range(500, 503):
            run.train_step(step)
            monitor.observe(step)
    assert subjects(monitor, "RESET") == {"optimizer counters"}


def test_a_flipped_bit_in_a_weight_is_corruption():
    run = ZooRun()

    def flip(step):
        if step == 20:
            with torch.no_grad():
                run.model.blocks[0].q.weight[3, 4] = 1e6

    assert subjects(watched(run, before=flip), "CORRUPT") == {"blocks.0.q.weight"}


def test_an_update_a_thousand_times_the_usual_one_is_a_surge(monkeypatch):
    run = ZooRun()
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=1e-4)
    monkeypatch.setattr(nn.utils, "clip_grad_norm_", lambda *_: None)
    plain = run.accumulate

    def accumulate(step, rank):
        plain(step, rank)
        if step == 20:
            run.model.head.weight.grad.mul_(1e3)

    run.accumulate = accumulate
    assert subjects(watched(run, steps=21), "SURGE") == {"embedding.weight"}  # tied to the head


def test_a_loss_or_gradient_that_is_no_number_is_found():
    run = ZooRun()

    def poison(step):
        if step == 4:
            with torch.no_grad():
                run.model.norm[0] = math.nan

    found = subjects(watched(run, before=poison, steps=6), "NONFINITE")
    assert {"loss", "norm", "embedding.weight"} <= found


def test_skipped_steps_and_a_collapsed_scale_are_found():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    with Monitor(model, optimizer, scaler=scaler, every=1, budget=None) as monitor:
        for step in range(12):
            optimizer.zero_grad()
            loss = model(torch.full((2, 4), math.inf)).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            monitor.observe(step)
    kinds = {finding.verdict for finding in monitor.findings}
    assert {"SKIPPED", "COLLAPSED"} <= kinds
    assert monitor.as_dict()["skipped_steps"] == 12


def test_a_healthy_loss_scale_may_skip_a_step():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with Monitor(model, optimizer, scaler=scaler, every=1, budget=None) as monitor:
        for step in range(20):
            optimizer.zero_grad()
            data = torch.full((2, 4), math.inf if step == 3 else 1.0)
            scaler.scale(model(data).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            monitor.observe(step, None, 1.0)
    kinds = {finding.verdict for finding in monitor.findings}
    assert kinds <= {"NONFINITE"}
    assert monitor.as_dict()["skipped_steps"] == 1


def test_a_finding_is_told_once_and_at_once():
    run = ZooRun()
    with Monitor(run.model, run.optimizer, every=1, budget=None) as monitor:
        told = [monitor.observe(step, run.batch(0)) for step in range(6)]
    assert [len(new) for new in told].count(1) == 1
    assert len(monitor.findings) == 1


def test_observing_changes_neither_weights_nor_random_numbers():
    plain, seen = ZooRun(), ZooRun()
    for step in range(5):
        plain.train_step(step)
    after_plain = torch.rand(1)
    torch.manual_seed(7)
    seen = ZooRun()
    watched(seen, steps=5)
    torch.testing.assert_close(plain.model.state_dict(), seen.model.state_dict(), rtol=0, atol=0)
    assert torch.equal(after_plain, torch.rand(1))


def test_no_observation_on_a_cuda_device_reads_a_number_back(monkeypatch):
    """Reading is what `Parcel` does, in the background; every other way to the host is closed here."""

    def refuse(*_, **__):
        raise AssertionError("a synchronisation in the hot loop")

    run = ZooRun()
    run.train_step(0)
    monitor = Monitor(run.model, run.optimizer, every=1, budget=None)

    class NeverArrives:
        def __init__(self, tensors):
            self.has_arrived = False

    monkeypatch.setattr(monitor_module, "Parcel", NeverArrives)
    batch, loss = run.batch(0), torch.tensor(1.0)
    monkeypatch.setattr(monitor._gauge, "_counters", lambda optimizers: torch.zeros(len(monitor._parameters)))
    for name in ("item", "__float__", "__bool__", "__int__", "tolist", "numpy", "cpu", "nonzero"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    for step in range(3):
        monitor.observe(step, batch, loss)


def test_a_summary_is_written_as_plain_json(tmp_path):
    monitor = watched(ZooRun(), steps=4)
    monitor.write(tmp_path / "audit" / "monitor.json")
    written = json.loads((tmp_path / "audit" / "monitor.json").read_text())
    assert written["verdict"] == "PASS"
    assert written["steps"] == 4
    assert written["measured"] == 3
    assert [path.name for path in (tmp_path / "audit").iterdir()] == ["monitor.json"]


def test_what_cannot_be_watched_has_one_line():
    with pytest.raises(ArbiterError, match="no trainable parameter"):
        Monitor(nn.ReLU(), None)
    with pytest.raises(ArbiterError, match=r"loss of shape \(3,\) found"):
        Monitor(nn.Linear(2, 2), None).observe(0, None, torch.ones(3))


def test_numbers_that_are_missing_or_odd_stop_nothing():
    model = nn.Linear(2, 2).requires_grad_(True)
    with Monitor(model, None, every=1, budget=None) as monitor:
        for step, batch in enumerate(
            (None, {}, [], torch.zeros(0, 4, dtype=torch.long), {"pixels": torch.ones(2)})
        ):
            assert monitor.observe(step, batch, None) == ()
        assert monitor.observe(99, None, torch.ones(1)) == ()  # steps may be left out


@pytest.mark.parametrize("make", HEALTHY.values(), ids=HEALTHY.keys())
def test_a_healthy_run_alarms_nobody(make):
    run = make()
    if hasattr(run, "train_step"):
        monitor = watched(run, steps=8, declared=declarations(run), patience=3)
        assert monitor.findings == []

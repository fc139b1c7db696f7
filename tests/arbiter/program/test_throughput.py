import time

import pytest
import torch
from zoo import FFN, HEADS, KV_HEADS, LAYERS, ROWS, TOKENS, VOCABULARY, WIDTH, ZooRun

from mothertongue_arbiter import Declared
from mothertongue_arbiter.torch.program import throughput as module
from mothertongue_arbiter.torch.program.throughput import measure_peak, measure_work, throughput
from mothertongue_arbiter.torch.run.state import preserved
from mothertongue_arbiter.torch.run.subject import Unavailable

KV = WIDTH // HEADS * KV_HEADS
OF_PRODUCTS = LAYERS * (2 * WIDTH * WIDTH + 2 * WIDTH * KV + 3 * WIDTH * FFN) + VOCABULARY * WIDTH


def test_the_work_of_a_step_is_that_of_the_formula(subject):
    work = measure_work(subject(ZooRun()))
    assert work.parameters == OF_PRODUCTS  # of the tied embedding only the use as head
    assert work.tokens == ROWS * TOKENS
    assert work.attention == 3 * LAYERS * 2 * 2 * TOKENS * WIDTH * ROWS * TOKENS
    assert work.operations == 6 * OF_PRODUCTS * ROWS * TOKENS + work.attention
    assert work.dtype == torch.float32


def test_the_dtype_of_the_products_is_that_of_autocast(subject):
    run = ZooRun()
    forward = run.forward

    def autocast(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(model, batch)

    run.forward = autocast
    assert measure_work(subject(run)).dtype == torch.bfloat16


def test_other_ranks_on_other_devices_are_not_counted(subject):
    run = ZooRun()
    run.declared = Declared(ranks=2)
    run.micro_batches = lambda step, rank: [
        {name: one[rank * 2 : rank * 2 + 2] for name, one in run.batch(step).items()}
    ]
    assert measure_work(subject(run)).tokens == ROWS // 2 * TOKENS


def test_the_peak_is_measured_in_less_than_a_second():
    begin = time.perf_counter()
    peak = measure_peak(torch.device("cpu"), torch.float32)
    assert time.perf_counter() - begin < 5  # on a busy machine
    assert 1e8 < peak < 1e14


def test_utilisation_is_stated_always_and_judged_when_declared(subject):
    run = ZooRun()
    with preserved(run):
        assert throughput(subject(run)).verdict == "PASS"
    run.declared = Declared(least_utilisation=0.999)
    with preserved(run):
        check = throughput(subject(run))
    assert check.verdict == "FAIL"
    assert f"6 x {OF_PRODUCTS:,} weights x {ROWS * TOKENS} tokens" in check.evidence
    run.declared = Declared(least_utilisation=1e-9)
    with preserved(run):
        assert throughput(subject(run)).verdict == "PASS"


def test_one_slow_step_does_not_count(subject):
    run = ZooRun()
    believed, calls = run.train_step, []

    def sometimes_slow(step):
        calls.append(step)
        time.sleep(0.5 if len(calls) == 3 else 0.0)
        believed(step)

    run.train_step = sometimes_slow
    seconds = float(throughput(subject(run)).evidence.split(") / ")[1].split(" s")[0])
    assert seconds < 0.4


def test_a_run_without_tokens_or_steps_is_not_measured(subject):
    run = ZooRun()
    one = subject(run)
    run.batch = lambda step: torch.ones(2, 3)
    with pytest.raises(Unavailable, match="no token ids"):
        throughput(one)
    run.train_step = None
    with pytest.raises(Unavailable, match="train_step"):
        throughput(one)


def test_fused_attention_is_counted_too(subject):
    run = ZooRun()

    def loss(model, batch, believed=run.loss):
        q = torch.zeros(ROWS, HEADS, TOKENS, 8)
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
        return believed(model, batch)

    plain = measure_work(subject(run)).attention
    run.loss = loss
    fused = 3 * 2 * 2 * ROWS * HEADS * TOKENS * TOKENS * 8
    assert measure_work(subject(run)).attention == plain + fused


def test_weights_that_are_parts_of_one_tensor_are_counted(subject):
    """As in a network whose layers another one makes; hooks of the backward cannot follow it."""
    run = ZooRun()
    run.parts = torch.nn.Parameter(torch.ones(2, 3))
    follow = torch.nn.Identity()
    loss = run.loss
    run.loss = lambda model, batch: loss(model, batch) + sum(follow(one).sum() for one in run.parts)
    assert measure_work(subject(run)).parameters == OF_PRODUCTS


def test_a_step_that_misses_the_floor_by_noise_only_is_not_called_slow(subject, monkeypatch):
    run = ZooRun()
    one = subject(run)
    one.step_seconds = [1.0, 1.0, 1.0]
    work = measure_work(one)
    monkeypatch.setattr(module, "_time_steps", lambda subject, device: None)
    monkeypatch.setattr(module, "measure_peak", lambda device, dtype: work.operations)  # so the share is 1
    for least, verdict in ((0.99, "PASS"), (1 / 0.95, "INCONCLUSIVE"), (1 / 0.8, "FAIL")):
        one.declared = Declared(least_utilisation=least)
        assert throughput(one).verdict == verdict

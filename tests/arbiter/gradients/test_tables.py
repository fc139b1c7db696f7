import pytest
import torch
from zoo import ZooRun, rotate

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.gradients.tables import table_precision


def turning(change):
    run = ZooRun()
    run.model.operations.rope = change
    return run


def with_tables(x, cos, sin):
    one, two = x.chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


def test_tables_in_the_precision_of_the_products_pass(subject):
    assert table_precision(subject(ZooRun())).verdict == Verdict.PASS


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tables_in_half_precision_fail_even_when_they_come_back_as_float32(subject, dtype):
    coarse = turning(lambda x, angle: with_tables(x, angle.cos().to(dtype), angle.sin().to(dtype)))
    check = table_precision(subject(coarse))
    assert check.verdict == Verdict.FAIL
    assert check.module == "blocks.0"
    back = turning(lambda x, angle: rotate(x, angle.to(dtype).float()))
    assert table_precision(subject(back)).verdict == Verdict.FAIL


def test_a_buffer_in_half_precision_fails(subject):
    run = ZooRun()
    angle = torch.arange(14.0)[:, None] * 100.0 ** (-torch.arange(4) / 4)
    run.model.register_buffer("cos", angle.cos().half())
    run.model.register_buffer("sin", angle.sin().half())
    run.model.operations.rope = lambda x, angle: with_tables(x, run.model.cos, run.model.sin)
    assert table_precision(subject(run)).verdict == Verdict.FAIL


def test_half_precision_tables_of_a_half_precision_model_pass(subject):
    run = turning(lambda x, angle: rotate(x, angle).to(x.dtype))
    forward = run.forward

    def autocast(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(model, batch)

    run.forward = autocast
    assert table_precision(subject(run)).verdict == Verdict.PASS
    run = turning(lambda x, angle: with_tables(x, angle.cos().to(x.dtype), angle.sin().to(x.dtype)))
    run.model.to(torch.bfloat16)
    assert table_precision(subject(run)).verdict == Verdict.PASS


def test_a_mask_in_half_precision_is_exact(subject):
    run = ZooRun()
    softmax = run.model.operations.softmax
    mask = torch.zeros(14, 14, dtype=torch.float16).masked_fill(torch.ones(14, 14).triu(1) > 0, -60000.0)
    run.model.operations.softmax = lambda scores: softmax(scores + torch.zeros(1) + mask.clone().float())
    assert table_precision(subject(run)).verdict == Verdict.PASS


def test_dropout_is_no_table(subject):
    assert table_precision(subject(ZooRun(dropout=0.3))).verdict == Verdict.PASS


@pytest.mark.parametrize(("dtype", "verdict"), [(torch.float32, "PASS"), (torch.bfloat16, "FAIL")])
@pytest.mark.parametrize("name", ["position_ids", "attention_mask"])
def test_a_table_that_is_made_of_the_positions_of_the_batch_is_one(subject, name, dtype, verdict):
    run = ZooRun()
    batch, forward = run.batch, run.forward
    run.batch = lambda step: (found := batch(step)) | {name: torch.ones_like(found["input_ids"])}
    given = []

    def with_positions(model, batch):
        given[:] = [batch[name].cumsum(-1)[:, None, :, None] * 100.0 ** (-torch.arange(4) / 4)]
        return forward(model, batch)

    def turned(x, angle):
        return with_tables(x, given[0].cos().to(dtype).float(), given[0].sin().to(dtype).float())

    run.forward = with_positions
    run.model.operations.rope = turned
    assert table_precision(subject(run)).verdict == verdict

from dataclasses import replace

import pytest
import torch
from zoo import ZooRun, rotate

from mothertongue_arbiter import Declared, Verdict
from mothertongue_arbiter.torch.forward.positions import positions_used
from mothertongue_arbiter.torch.forward.shifting import position_shift
from mothertongue_arbiter.torch.run.subject import Unavailable


def relative():
    run = ZooRun()
    run.declared = replace(run.declared, positions="relative")
    return run


def rotate_neighbours(x, angle):
    one, two = x[..., ::2], x[..., 1::2]
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([one * cos - two * sin, two * cos + one * sin], dim=-1).flatten(-2)


def answer(exact, run, check):
    subject = exact(run)
    with subject.stirred():
        return check(subject)


def test_rotary_positions_may_be_shifted(exact):
    assert answer(exact, relative(), position_shift).verdict == Verdict.PASS


def test_what_is_not_declared_is_not_asked(exact):
    with pytest.raises(Unavailable, match="declare"):
        answer(exact, ZooRun(), position_shift)


def test_queries_and_keys_with_other_pairings_fail(exact):
    run = relative()
    calls = []

    def alternating(x, angle):
        calls.append(1)
        return (rotate if len(calls) % 2 else rotate_neighbours)(x, angle)

    run.model.operations.rope = alternating
    assert answer(exact, run, position_shift).verdict == Verdict.FAIL


class TableRun(ZooRun):
    """Positions come with the batch, and their sines from a table that was made before."""

    def __init__(self, dtype, shift=0):
        super().__init__()
        self.declared = replace(self.declared, positions="relative")
        half = 4
        angle = torch.arange(64.0)[:, None] * 100.0 ** (-torch.arange(half) / half)
        self.model.register_buffer("cos", angle.cos().to(dtype), persistent=False)
        self.model.register_buffer("sin", angle.sin().to(dtype), persistent=False)
        self.model.operations.rope = self.rope

    def batch(self, step):
        found = super().batch(step)
        return found | {"position_ids": torch.arange(14).expand_as(found["input_ids"]).clone()}

    def forward(self, model, batch):
        self.positions = batch["position_ids"]
        return super().forward(model, batch)

    def rope(self, x, angle):
        one, two = x.chunk(2, dim=-1)
        cos, sin = (table[self.positions][:, None] for table in (self.model.cos, self.model.sin))
        return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


def test_position_ids_of_the_batch_are_shifted_and_float32_tables_are_exact_enough(exact):
    assert answer(exact, TableRun(torch.float32), position_shift).verdict == Verdict.PASS


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tables_in_half_precision_fail(exact, dtype):
    assert answer(exact, TableRun(dtype), position_shift).verdict == Verdict.FAIL


def unused_ids(ids):
    """A run whose batch carries position ids, while the model counts for itself."""
    run = relative()
    batch = run.batch

    def with_positions(step):
        found = batch(step)
        return found | {"position_ids": ids.expand_as(found["input_ids"]).clone()}

    run.batch = with_positions
    return run


def test_position_ids_that_are_not_used_fail_where_their_distances_are_others(exact):
    check = answer(exact, unused_ids(torch.arange(14) // 2), position_shift)
    assert check.verdict == Verdict.FAIL
    assert check.cause == "the position ids are not used"


@pytest.mark.parametrize("ids", [torch.arange(14), torch.arange(14) + 5])
def test_position_ids_that_count_as_the_program_does_need_not_be_used(exact, ids):
    assert answer(exact, unused_ids(ids), position_shift).verdict == Verdict.PASS


def test_positions_that_nobody_uses_are_told_by_their_use(exact):
    run = TableRun(torch.float32)
    run.model.operations.rope = lambda x, angle: x
    with pytest.raises(Unavailable, match="cannot be shifted"):
        answer(exact, run, position_shift)
    assert answer(exact, run, positions_used).verdict == Verdict.FAIL


class LagRun:
    """A long convolution by Fourier transforms, whose kernel is a function of the lag."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.ModuleDict(
            {
                "embed": torch.nn.Embedding(11, 8),
                "decay": torch.nn.Embedding(1, 8),
                "head": torch.nn.Linear(8, 11),
            }
        )
        self.declared = Declared(positions="relative")

    def batch(self, step):
        return torch.randint(11, (2, 12), generator=torch.Generator().manual_seed(step))

    def forward(self, model, batch):
        x, count = model["embed"](batch), batch.shape[1]
        kernel = torch.exp(-model["decay"].weight[0].abs() * torch.arange(count)[:, None])
        transformed = torch.fft.rfft(x, 2 * count, dim=1) * torch.fft.rfft(kernel, 2 * count, dim=0)
        return model["head"](x + torch.fft.irfft(transformed, 2 * count, dim=1)[:, :count].tanh())

    def loss(self, model, batch):
        return torch.nn.functional.cross_entropy(self.forward(model, batch)[:, :-1].mT, batch[:, 1:])


def test_lags_of_a_long_convolution_are_no_positions(exact):
    with pytest.raises(Unavailable, match="lags"):
        answer(exact, LagRun(), position_shift)


def test_a_mask_that_moves_with_the_positions_proves_nothing(exact):
    """As in transformers, where one count makes both."""
    run = relative()
    shifted = []

    def looking_ahead(documents):
        count = torch.arange(documents.shape[1])
        shifted.append(int(count[0]))
        return (torch.arange(1, documents.shape[1] + 1) - 1 <= count[:, None])[None, None]

    run.model.operations.mask = looking_ahead
    with pytest.raises(Unavailable, match="its mask of the same numbers"):
        answer(exact, run, position_shift)
    assert max(shifted) > 0

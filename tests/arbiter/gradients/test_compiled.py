import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import counters
from zoo import ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.gradients.compiled import compiled_gradients
from mothertongue_arbiter.torch.gradients.rounding import measure_rounding
from mothertongue_arbiter.torch.run.subject import Unavailable


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


def compiled(backend, **options):
    run = ZooRun(**options)
    run.graph = torch.compile(run.model, backend=backend)
    run.forward = lambda model, batch: run.graph(batch["input_ids"], batch["documents"])
    return run


def half_unwritten(graph, inputs):
    """A compiler whose backward leaves the last part of a buffer as it was."""

    def backward(*values):
        found = [one.clone() if isinstance(one, torch.Tensor) else one for one in graph(*values)]
        for one in found:
            if isinstance(one, torch.Tensor) and one.dim() == 2:
                one[len(one) // 2 :] = 0
        return found

    return backward


def test_a_sound_compiler_passes(subject):
    found = subject(compiled("aot_eager"))
    assert compiled_gradients(found, measure_rounding(found)).verdict == Verdict.PASS


def test_a_compiled_backward_that_writes_half_of_its_buffers_fails(subject):
    backend = aot_autograd(fw_compiler=lambda graph, inputs: graph, bw_compiler=half_unwritten)
    found = subject(compiled(backend))
    check = compiled_gradients(found, measure_rounding(found))
    assert check.verdict == Verdict.FAIL
    assert "another gradient when compiled" in check.evidence


def test_without_a_compiler_nothing_is_asked(subject):
    found = subject(ZooRun())
    with pytest.raises(Unavailable, match=r"torch\.compile"):
        compiled_gradients(found, measure_rounding(found))


def test_dropout_cannot_be_compared(subject):
    found = subject(compiled("aot_eager", dropout=0.2))
    rounding = measure_rounding(found)
    with pytest.raises(Unavailable, match="dropout"):
        compiled_gradients(found, rounding)

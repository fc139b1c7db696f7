"""Throughput: how much of what this device really reaches the training step uses.

The peak is measured, with matrix products in the step's own dtype: no table of devices is needed, and a
shared or throttled machine is compared with itself.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.torch.data.rows import ranks_of, rows_of_rank
from mothertongue_arbiter.torch.run.batches import token_ids
from mothertongue_arbiter.torch.run.clock import seconds_of
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable

STEPS = 3  # timed; the median counts, so the first one, which warms up, does not
SIZES = (256, 512, 1024, 2048, 4096, 8192)  # of a square product
LONG_ENOUGH_SECONDS = 0.001  # of a product: a larger one is no faster
REPEATS = 3
RETRIES = 3  # of a step that seems too slow
MARGIN = 0.1  # by which the best of them misses what is declared, if that is to be told from noise
OF_WEIGHTS = ("mm", "addmm")  # products of weights; all others counted are of activations: attention


def _fused_attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    """Return the operations of one fused attention, from shapes."""
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


# That of the CPU is one which the counter of torch does not know.
ALSO_COUNTED = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: _fused_attention}


@dataclass(frozen=True, kw_only=True)
class Work:
    """The products of one optimizer step on this device, forward and backward."""

    parameters: float  # weights in products: an embedding that is no head is looked up, and not counted
    tokens: int
    attention: float  # operations
    dtype: torch.dtype

    @property
    def operations(self) -> float:
        """6 N D + attention (Kaplan et al., arXiv:2001.08361; PaLM, arXiv:2204.02311, appendix B)."""
        return 6.0 * self.parameters * self.tokens + self.attention


def throughput(subject: Subject) -> Check:
    """The step reaches the declared share of the peak; without a declaration its share is only stated."""
    subject.need("train_step")
    work = measure_work(subject)
    device = next(subject.run.model.parameters()).device
    least = subject.declared.least_utilisation
    if len(subject.step_seconds) < STEPS:
        _time_steps(subject, device)
    step_seconds, peak = statistics.median(subject.step_seconds), measure_peak(device, work.dtype)
    for _ in range(RETRIES):
        if least is None or work.operations / step_seconds / peak >= least:
            break
        _time_steps(subject, device)  # something else may have run meanwhile
        again, peak_again = statistics.median(subject.step_seconds), measure_peak(device, work.dtype)
        step_seconds, peak = min((step_seconds, peak), (again, peak_again), key=lambda one: one[0] * one[1])
    share = work.operations / step_seconds / peak
    good = least is None or share >= least
    clear = least is not None and share < least * (1 - MARGIN)
    floor = "" if least is None else f", {least:.1%} declared"
    name = str(work.dtype).removeprefix("torch.")
    return Check(
        name="throughput",
        verdict=Verdict.PASS if good else Verdict.FAIL if clear else Verdict.INCONCLUSIVE,
        evidence=f"{share:.1%} of the measured peak{floor}: (6 x {work.parameters:,.0f} weights x "
        f"{work.tokens:,} tokens + {work.attention:.2g} of attention) / {step_seconds:.3g} s = "
        f"{work.operations / step_seconds / 1e9:.3g} of {peak / 1e9:.3g} GFLOP/s in {name}; "
        f"{work.tokens / step_seconds:,.0f} tokens/s"
        + ("" if good or clear else "; too close to tell on a machine that does other things"),
        cause=""
        if not clear
        else "loops in Python, small or unfused operations, a slow data path, or products in a slow dtype",
    )


def measure_work(subject: Subject) -> Work:
    """Return the operations of a step, counted in one forward; the backward has twice as many."""
    run = subject.run
    batches = [run.batch(subject.step)]
    if ranks_of(subject) > 1 and not hasattr(run, "replicas"):  # the other ranks are on other devices
        batches = rows_of_rank(subject, subject.step, 0)
    tokens = sum(ids.numel() for batch in batches if (ids := token_ids(batch)) is not None)
    if not tokens:
        raise Unavailable("the batch holds no token ids, so its tokens cannot be counted")
    with torch.no_grad(), _Products() as products:
        for batch in batches:
            run.loss(run.model, batch)
    of_weights = sum(count for name, count in products.operations.items() if name in OF_WEIGHTS)
    if not of_weights:
        raise Unavailable("no matrix product was seen in the loss")
    return Work(
        parameters=of_weights / 2 / tokens,
        tokens=tokens,
        attention=3.0 * (products.operations.total() - of_weights),
        dtype=products.dtypes.most_common(1)[0][0],
    )


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of products by their name, by the formulas of torch, and in which dtype they are.

    torch's own FlopCounterMode follows modules by hooks of the backward, which not every model bears.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: Counter[str] = Counter()
        self.dtypes: Counter[torch.dtype] = Counter()  # of products of weights, by the size of the result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        name = packet.__name__
        if func in ALSO_COUNTED:
            self.operations[name] += ALSO_COUNTED[func](*(_shape(one) for one in args))
        elif packet in flop_registry:
            self.operations[name] += flop_registry[packet](*args, **(kwargs or {}), out_val=output)
        if name in OF_WEIGHTS and isinstance(output, Tensor):
            self.dtypes[output.dtype] += output.numel()
        return output


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, Tensor) else value


def _time_steps(subject: Subject, device: torch.device) -> None:
    steps = range(subject.step, subject.step + STEPS)
    subject.step_seconds = [
        seconds_of(partial(subject.run.train_step, step), device)  # type: ignore[attr-defined]
        for step in steps
    ]


def measure_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return the floating-point operations a second of the best square product of `dtype` on `device`."""
    best = 0.0
    for size in SIZES:
        matrix = torch.ones(size, size, device=device, dtype=dtype)
        result = torch.empty_like(matrix)
        product = partial(torch.mm, matrix, matrix, out=result)
        product()  # the first one allocates and chooses a kernel
        seconds = statistics.median([seconds_of(product, device) for _ in range(REPEATS)])
        best = max(best, 2.0 * size**3 / seconds)
        if seconds > LONG_ENOUGH_SECONDS:
            break
    return best

"""What a fault is: data, and a change of a sound run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from faults.subject import ZooRun


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`where` has the parameters around the broken operation: one of them must be named first."""

    name: str
    source: str  # the report that it re-enacts, as repository#thread, or the research page's own name
    caught_by: tuple[str, ...]  # all of these checks fail; none for what is known to stay unseen
    inject: Callable[[ZooRun], None]
    sound: Callable[[], ZooRun] = ZooRun
    where: tuple[str, ...] = ()
    needs_reference: bool = False  # only a second forward, written from the declaration, can tell

    @property
    def family(self) -> str:
        return self.name[0]

    def make(self) -> ZooRun:
        """Return a new run with this fault; what it rebuilds has it, too."""
        run = self.sound()
        self.inject(run)
        run.origin = self.make
        return run


FAULTS: list[Fault] = []

Injection = Callable[[ZooRun], None]


def fault(
    source: str,
    *caught_by: str,
    sound: Callable[[], ZooRun] = ZooRun,
    where: tuple[str, ...] = (),
    needs_reference: bool = False,
) -> Callable[[Injection], Injection]:
    """Register a function that puts a fault into a sound run; its name begins with its family."""

    def register(inject: Injection) -> Injection:
        FAULTS.append(
            Fault(
                name=inject.__name__,
                source=source,
                caught_by=caught_by,
                inject=inject,
                sound=sound,
                where=where,
                needs_reference=needs_reference,
            )
        )
        return inject

    return register


def sound(**settings: Any) -> Callable[[], ZooRun]:
    """Return a maker of sound runs with these settings."""
    return lambda: ZooRun(**settings)


def replaced_backward(forward: Callable, backward: Callable) -> Callable:
    """An operation whose backward is `backward(gradient, *inputs)`, one gradient for each input."""

    class Replaced(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*inputs)
            return forward(*inputs)

        @staticmethod
        def backward(ctx, gradient):
            return backward(gradient, *ctx.saved_tensors)

    return Replaced.apply


def altered_gradient(forward: Callable, alter: Callable) -> Callable:
    """An operation whose gradients are right, and then the first one is altered."""

    def backward(gradient, *inputs):
        with torch.enable_grad():
            inputs = [value.detach().requires_grad_(value.is_floating_point()) for value in inputs]
            wanted = [value for value in inputs if value.requires_grad]
            found = list(torch.autograd.grad(forward(*inputs), wanted, gradient))
        found[0] = alter(found[0])
        return tuple(found.pop(0) if value.requires_grad else None for value in inputs)

    return replaced_backward(forward, backward)


def with_targets(run: ZooRun, change: Callable[[Tensor], Tensor]) -> None:
    """Let the program train on changed targets, while its author believes in the right ones."""
    batch = run.batch
    run.batch = lambda step: (found := batch(step)) | {"targets": change(found["targets"].clone())}

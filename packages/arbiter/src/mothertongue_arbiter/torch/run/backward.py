"""One forward and backward of the run's own loss, with the random numbers fixed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.run import TrainingRun


@dataclass(frozen=True, kw_only=True)
class Backward:
    """A loss and the gradient of every parameter; None where the framework returned none."""

    loss: float
    gradients: Mapping[str, Tensor | None]


def fix_random_numbers(seed: int) -> None:
    """Dropout and other noise repeat from here."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)  # the same on a CPU, and a millisecond faster
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the audited program may use the global state


@contextmanager
def same_start(model: nn.Module, seed: int) -> Iterator[None]:
    """Let what is inside begin with these random numbers, and leave the buffers as they are now.

    A forward in training moves some, as the vectors of a power iteration or the load of experts. Put back,
    it is the same function when it is asked again, with other weights or in another precision.
    """
    fix_random_numbers(seed)
    home = [
        (module, name, buffer, buffer._version, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, version, value in home:
                module._buffers[name] = buffer
                if buffer._version != version:
                    buffer.copy_(value)


def random_state() -> tuple[bytes, ...]:
    """Return where the random numbers of Python, numpy and torch, on every device, are."""
    states = [torch.default_generator.get_state()]
    if torch.accelerator.is_available():
        states += [torch.get_device_module().get_rng_state()]
    numbers = np.random.get_state(legacy=False)  # noqa: NPY002 - the audited program may use the global state
    return (*(bytes(one.numpy()) for one in states), repr(numbers).encode(), repr(random.getstate()).encode())


def backward(run: TrainingRun, batch: Any, *, seed: int) -> Backward:
    """Run one forward and backward on `batch`; the gradients in the model are new ones.

    Raises:
        ArbiterError: the loss is no scalar that can be differentiated.
    """
    parameters = dict(run.model.named_parameters())
    for parameter in parameters.values():
        parameter.grad = None
    with same_start(run.model, seed), torch.enable_grad():
        loss = scalar(run.loss(run.model, batch))
        if not loss.requires_grad:
            raise ArbiterError(
                "loss: does not depend on any trainable parameter; return it before item() or detach()"
            )
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: _dense(parameter) for name, parameter in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = None
    return Backward(loss=float(loss.detach()), gradients=gradients)


def scalar(loss: Any) -> Tensor:
    """Return `loss` as a tensor with one element, or say what it is instead."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss.reshape(())
    found = (
        f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    )
    raise ArbiterError(
        f"loss: {found} found, a scalar tensor expected; return the loss that is differentiated"
    )


def logits_of(output: Any) -> Tensor:
    """Return the logits (B, T, V) that `forward` returned, also as a transformers output or a tuple."""
    output = getattr(output, "logits", output)
    output = output[0] if isinstance(output, list | tuple) else output
    if not isinstance(output, Tensor) or output.dim() != 3:
        found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ArbiterError(f"forward: {found} found, logits of shape (rows, tokens, vocabulary) expected")
    return output


def distance(gradients: Mapping[str, Tensor | None], others: Mapping[str, Tensor | None], name: str) -> float:
    """Return how far a gradient of `name` is from another, relative to the other; absent counts as zero."""
    one, other = gradients[name], others[name]
    if one is None and other is None:
        return 0.0
    size = float(other.double().norm()) if other is not None else 0.0
    if one is None or other is None:
        return 1.0 if size or (one is not None and bool(one.any())) else 0.0
    error = float((one.double() - other.double()).norm())
    return error / size if size else (0.0 if error == 0 else float("inf"))


def real(tensor: Tensor) -> Tensor:
    """Return a view of a complex tensor as pairs of real numbers, any other as it is.

    The gradient of torch at a + bi is dL/da + i dL/db, so that of the view is the view of the gradient.
    """
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _dense(parameter: nn.Parameter) -> Tensor | None:
    gradient = parameter.grad
    if gradient is None:
        return None
    gradient = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
    return real(gradient).clone()

"""True float64: `.double()` alone is not enough, since many models cast to float32 or bfloat16 inside.

Llama's RMSNorm and rotary tables, a router's softmax: with `.double()` alone, autograd and finite
difference are 4e-5 to 9e-4 apart, which hides faults. Here a dispatch mode promotes every cast, and
remembers which module asked for it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

PROMOTED = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
}
aten = torch.ops.aten
# Functions that draw other numbers in another precision.
DRAWS = {aten.rand, aten.randn, aten.rand_like, aten.randn_like, aten.normal} | {
    aten.uniform_,
    aten.normal_,
    aten.bernoulli,
}
FLOAT32_EPSILON, FLOAT64_EPSILON = (torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64))


class Float64Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes in float64 whatever asks for less, as the same function of the same random numbers.

    Random numbers are drawn in the precision in which the run draws them, and the epsilon of float64, which a
    norm without one of its own asks for (`torch.nn.RMSNorm`), is that of float32.
    `casts` counts each (module, dtype) that did ask; `uses` has the parameters, by id, in order of first use.
    `has_rounded_tables` says whether anything but a weight was made in less before, as a rotary table.
    """

    def __init__(self, model: nn.Module, modules: ModulePath) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.modules = modules
        lower = [parameter.dtype for parameter in model.parameters() if parameter.dtype in PROMOTED]
        self._default = torch.get_default_dtype()
        self._own = lower[0] if lower else torch.float64  # of the run
        self._epsilon = FLOAT32_EPSILON if lower else FLOAT64_EPSILON
        self._unused = {id(parameter) for parameter in model.parameters()}
        self.casts: Counter[tuple[str, str]] = Counter()
        self.uses: dict[int, int] = {}
        self.has_rounded_tables = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if self._unused:
            self._note_uses(args)
        if func.overloadpacket in DRAWS:
            return self._drawn(func, args, kwargs)
        dtype = kwargs.get("dtype")
        if dtype in PROMOTED:
            kwargs["dtype"] = PROMOTED[dtype]
            # A float64 default turns plain factories to float64; float32 here was asked for by the model.
            if func is torch.ops.aten._to_copy.default:
                self.casts[self.modules.current, str(dtype).removeprefix("torch.")] += 1
        if not func._schema.is_mutable:  # a table that was made before the audit may still be float32
            args = [self._promoted(value) for value in args]
            kwargs = {name: self._promoted(value) for name, value in kwargs.items()}
        elif func is aten.add_.Scalar and args[1] == FLOAT64_EPSILON:
            args = (args[0], self._epsilon, *args[2:])
        return func(*args, **kwargs)

    def _drawn(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Draw in the precision of the run, and return the numbers in float64."""
        if any(argument.name == "dtype" for argument in func._schema.arguments):
            asked, has_tensor = kwargs.get("dtype"), any(isinstance(value, Tensor) for value in args)
            if asked == torch.float64:  # as one of its tensors has
                kwargs["dtype"] = self._own
            elif asked is None and not has_tensor:
                kwargs["dtype"] = self._default
        drawn = func(*(self._lowered(value) for value in args), **kwargs)
        if func._schema.is_mutable:
            return args[0].copy_(drawn)
        return drawn.to(PROMOTED.get(drawn.dtype, drawn.dtype))

    def _lowered(self, value: Any) -> Any:
        is_exact = isinstance(value, Tensor) and value.dtype == torch.float64
        return value.to(self._own) if is_exact else value

    def _promoted(self, value: Any) -> Any:
        if isinstance(value, float):
            return self._epsilon if value == FLOAT64_EPSILON else value
        if isinstance(value, Tensor):
            if value.dtype in PROMOTED:
                self.has_rounded_tables = True
                return torch.ops.aten._to_copy.default(value, dtype=PROMOTED[value.dtype])
            return value
        return [self._promoted(part) for part in value] if isinstance(value, list | tuple) else value

    def _note_uses(self, values: Any) -> None:
        for value in values:
            if id(value) in self._unused:
                self._unused.remove(id(value))
                self.uses[id(value)] = len(self.uses)
            elif isinstance(value, list | tuple):
                self._note_uses(value)


class ModulePath:
    """Knows which module of a model is running."""

    def __init__(self, model: nn.Module) -> None:
        self._stack: list[str] = []
        self._names = {id(module): name for name, module in model.named_modules()}

    @property
    def current(self) -> str:
        return self._stack[-1] if self._stack else "outside the model"

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow every module call inside."""
        handles = [
            nn.modules.module.register_module_forward_pre_hook(self._enter),
            nn.modules.module.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        name = self._names.get(id(module), type(module).__name__) or type(module).__name__
        self._stack.append(name)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()


@contextmanager
def line_by_line() -> Iterator[None]:
    """Run no compiled graph inside. One that meets a dispatch mode is given up for good."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def true_float64(model: nn.Module) -> Iterator[Float64Mode]:
    """Convert `model` in place and compute in float64 inside; whoever calls restores the model."""
    modules = ModulePath(model)
    mode = Float64Mode(model, modules)
    default = torch.get_default_dtype()
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, default)
        torch.set_default_dtype(torch.float64)
        stack.enter_context(line_by_line())  # a compiled graph has its precision baked in
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                tensor.grad = None
                if tensor.dtype in PROMOTED:
                    mode.has_rounded_tables |= not isinstance(tensor, nn.Parameter)
                    tensor.data = tensor.data.to(PROMOTED[tensor.dtype])
        stack.enter_context(modules.followed())
        stack.enter_context(mode)
        yield mode

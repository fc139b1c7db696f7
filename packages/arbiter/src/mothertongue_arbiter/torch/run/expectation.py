"""A step without chance: each random number that a forward draws is its expectation.

With dropout a step cannot be repeated outside of the program, so its gradient could not be compared with that
of the whole batch. A Bernoulli number that is its own mean keeps everything and rescales nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
BERNOULLI_OF_TENSOR = (aten.bernoulli.default, aten.bernoulli.out)
UNIFORM = (aten.rand.default, aten.rand_like.default, aten.rand.generator)
NORMAL = (aten.randn.default, aten.randn_like.default, aten.randn.generator)


class Expectation(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws no Bernoulli, uniform or normal number inside, whatever module or function asks for it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if func is aten.bernoulli_.float:  # dropout: scaled by 1 / p afterwards
            return args[0].fill_(args[1] if len(args) > 1 else kwargs.get("p", 0.5))
        if func is aten.bernoulli.p:
            return torch.full_like(args[0], args[1])
        if func is aten.bernoulli_.Tensor:
            return args[0].copy_(args[1])
        if func in BERNOULLI_OF_TENSOR:
            return args[0].clone()
        if func is aten.uniform_.default:
            low = args[1] if len(args) > 1 else 0.0
            high = args[2] if len(args) > 2 else 1.0
            return args[0].fill_((low + high) / 2)
        if func is aten.normal_.default:
            return args[0].fill_(args[1] if len(args) > 1 else 0.0)
        output = func(*args, **kwargs)
        if isinstance(output, Tensor) and func in UNIFORM:
            return output.fill_(0.5)
        return output.zero_() if isinstance(output, Tensor) and func in NORMAL else output

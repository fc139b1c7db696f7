"""Tables that are made in lower precision than they are used in, as rotary angles in half precision.

In float64 such a table is promoted with all the rest, so it is looked for where it is: in the run's own
precision. A table is what is computed from no weight and no token; positions may come with the batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.torch.run.backward import fix_random_numbers
from mothertongue_arbiter.torch.run.batches import MASK_NAMES, POSITION_NAMES, named_tensor
from mothertongue_arbiter.torch.run.precision import ModulePath, line_by_line
from mothertongue_arbiter.torch.run.subject import Subject

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution", "_scaled_dot_product")
NOT_MADE = ("rand", "bernoulli", "dropout", "empty", "normal")  # noise, and memory that is written later
MASKING = 1e4  # a mask holds 0, 1 or a very negative number, each exact enough in any precision


def table_precision(subject: Subject) -> Check:
    """What is computed once for every token, as rotary tables, is as precise as what it is applied to."""
    modules = ModulePath(subject.run.model)
    fix_random_numbers(subject.options.seed)
    watch = _Watch(subject.run.model, modules)
    for names in (POSITION_NAMES, MASK_NAMES):  # of which positions are counted
        watch.follow(named_tensor(subject.batch, names))
    with torch.no_grad(), line_by_line(), modules.followed(), watch:
        subject.run.loss(subject.run.model, subject.batch)
    weights = [_spacing(one) for one in subject.run.model.parameters() if one.is_floating_point()]
    finest = max([*watch.products, *weights], default=0.0)
    coarse = {place: spacing for place, spacing in watch.used.items() if spacing > finest}
    if coarse:
        place, spacing = next(iter(coarse.items()))
        return Check(
            name="table precision",
            verdict=Verdict.FAIL,
            evidence=f"a table with a spacing of {spacing:.1e} is applied in {place}, whose products have "
            f"{finest:.1e}",
            cause="positions, cosines or sines in half precision",
            module=place,
            findings=tuple(
                Finding(subject=one, verdict="COARSE", detail=f"{far:.1e}") for one, far in coarse.items()
            ),
        )
    evidence = f"no table is coarser than the products ({finest:.1e})"
    return Check(name="table precision", verdict=Verdict.PASS, evidence=evidence)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what is made from constants, and how coarse it was at its coarsest."""

    def __init__(self, model: nn.Module, modules: ModulePath) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products: set[float] = set()
        self.used: dict[str, float] = {}  # coarsest table applied in each module
        self._modules = modules
        self._tables = WeakIdKeyDictionary()
        for buffer in model.buffers():
            self.follow(buffer)

    def follow(self, table: Tensor | None) -> None:
        """Take `table`, and what is made of it and of other tables alone, for a table."""
        if table is not None:
            self._tables[table] = _spacing(table)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::").split(".")[0]
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        made = [one for one in tree_leaves(output) if isinstance(one, Tensor)]
        if name.startswith(PRODUCTS):
            self.products.update(_spacing(one) for one in made if one.is_floating_point())
        tables = [one for one in given if one in self._tables]
        if name == "lift_fresh" or (len(tables) == len(given) and not any(no in name for no in NOT_MADE)):
            coarsest = max([self._tables[one] for one in tables], default=0.0)
            for one in made:
                self._tables[one] = max(coarsest, _spacing(one))
        elif len(tables) < len(given):
            self._note_use([one for one in tables if one.dim() > 1 and not _is_mask(one)])
        return output

    def _note_use(self, tables: list[Tensor]) -> None:
        for table in tables:
            place = self._modules.current
            self.used[place] = max(self.used.get(place, 0.0), self._tables[table])


def _spacing(tensor: Tensor) -> float:
    """Return the spacing of the numbers of `tensor` at 1; whole numbers are exact."""
    return float(torch.finfo(tensor.dtype).eps) if tensor.is_floating_point() else 0.0


def _is_mask(table: Tensor) -> bool:
    if not table.is_floating_point():
        return True
    return bool(((table == 0) | (table == 1) | (table.abs() > MASKING)).all())

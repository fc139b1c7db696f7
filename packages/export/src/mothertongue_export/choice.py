"""Choose how each matrix is stored: the smallest first, and better ones where the gates ask for it.

The measured errors are local, one matrix on the inputs of the exact model. They say where a byte buys most;
whether a choice is good enough, only the whole graph says. So: everything at its smallest, run the graph, and
while a gate is missed, improve the matrices that give most for their bytes, and run it again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from mothertongue_export.calibration import Calibration, Cost, MatrixCosts
from mothertongue_export.quantization import FLOAT, Plan, Storage
from mothertongue_trainer.recipe import ExportConfig

BLOCKS = (128, 64, 32)
SMALLEST = "the smallest"
# A round cuts the sum of squared errors to between these shares of it: few rounds, and little too much.
LEAST_CUT, LARGEST_CUT = 0.9, 0.6
# Clear flips are the tail of the logit errors, which falls faster than their square. Measured on nano from
# blocks of 128 to 32: the squares fall 1.9 times, flips 8 times and more.
FLIP_POWER = 3


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One matrix, what it costs as it is stored, and why it is."""

    node: str
    cost: Cost
    reason: str


def ladders(config: ExportConfig) -> tuple[list[Storage], list[Storage]]:
    """Return the storages that may be chosen, the smallest first: of the layers, and of table and head.

    Table and head never have 4 bits: every token passes through them, and models have been seen to repeat
    themselves without end.
    """
    if config.weights == "fp32":
        return [FLOAT], [FLOAT]
    blocks = [block for block in BLOCKS if block < config.block_size]
    eight = [Storage(bits=8, block_size=block) for block in (config.block_size, *blocks)]
    four = [Storage(bits=4, block_size=block) for block in (config.block_size, *blocks)]
    # A float matrix is the last resort; a float table would be stored twice as what it is not.
    return ([*four, *eight, FLOAT] if config.weights == "int4" else [*eight, FLOAT]), eight


def smallest(calibration: Calibration) -> list[Choice]:
    """Return the smallest storage of each matrix."""
    return [Choice(node=m.node, cost=m.costs[0], reason=SMALLEST) for m in calibration.matrices]


def improved(
    choices: Sequence[Choice], calibration: Calibration, *, excess: float, because: str
) -> list[Choice] | None:
    """Return better choices after a gate was missed by the factor `excess`; None if there are none.

    `because` names the gate. The sum of squared errors, which the divergence of the whole follows, is cut by
    that factor as far as one round may.
    """
    ways = {matrix.node: matrix for matrix in calibration.matrices}
    now = {choice.node: choice for choice in choices}
    target = _total(choices) * min(LEAST_CUT, max(LARGEST_CUT, 1 / excess))
    changed = False
    while _total(list(now.values())) > target:
        steps = [step for choice in now.values() if (step := _best_step(choice, ways[choice.node]))]
        if not steps:
            break
        _, node, better = max(steps, key=lambda step: (step[0], step[1]))
        reason = f"{because}: error {now[node].cost.error:.4f} -> {better.error:.4f}"
        now[node] = Choice(node=node, cost=better, reason=reason)
        changed = True
    return [now[choice.node] for choice in choices] if changed else None


def plan_of(choices: Sequence[Choice], calibration: Calibration, config: ExportConfig) -> Plan:
    """Return the plan of these choices."""
    layers, _ = ladders(config)
    fitted = {choice.node: calibration.fitted.get((choice.node, choice.cost.storage)) for choice in choices}
    return Plan(
        default=layers[0],
        exceptions={choice.node: choice.cost.storage for choice in choices},
        fitted={node: matrix for node, matrix in fitted.items() if matrix},
    )


def declared_bits(choices: Sequence[Choice]) -> dict[str, int]:
    """Return the bits of each matrix by the name of its node, as they were chosen."""
    return {choice.node: choice.cost.storage.bits for choice in choices}


def rows(choices: Sequence[Choice]) -> list[tuple[str, str, str, str]]:
    """Return a short table: kind of matrix, how it is stored and in how many layers, errors, reason."""
    groups: dict[tuple[str, str], list[Choice]] = {}
    for choice in choices:
        kind = ".".join(choice.node.split(".")[-2:])  # without the layer
        groups.setdefault((kind, str(choice.cost)), []).append(choice)
    table = []
    for (kind, storage), members in sorted(groups.items()):
        errors = [member.cost.error for member in members]
        span = f"{min(errors):.4f}" if len(errors) == 1 else f"{min(errors):.4f} to {max(errors):.4f}"
        reason = members[0].reason.split(":")[0]
        table.append((kind, f"{storage} ({len(members)})", span, reason))
    return table


def as_dicts(choices: Sequence[Choice]) -> list[dict[str, object]]:
    """Return the choices as plain JSON values."""
    return [
        {
            "node": choice.node,
            "bits": choice.cost.storage.bits,
            "block_size": choice.cost.storage.block_size,
            **{key: value for key, value in dataclasses.asdict(choice.cost).items() if key != "storage"},
            "reason": choice.reason,
        }
        for choice in choices
    ]


def _total(choices: Sequence[Choice]) -> float:
    return sum(choice.cost.error**2 for choice in choices)


def _best_step(choice: Choice, ways: MatrixCosts) -> tuple[float, str, Cost] | None:
    """Return the better storage that removes most error for its bytes, with that rate."""
    rates = [
        ((choice.cost.error**2 - cost.error**2) / (cost.bytes - choice.cost.bytes), cost)
        for cost in ways.costs
        if cost.error < choice.cost.error and cost.bytes > choice.cost.bytes
    ]
    if not rates:
        return None
    rate, cost = max(rates, key=lambda pair: pair[0])
    return rate, choice.node, cost

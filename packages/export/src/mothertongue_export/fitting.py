"""Write the smallest device graph that holds the gates: measure every matrix, choose, run, choose better."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mothertongue.session import Session
from mothertongue_export.calibration import calibrate
from mothertongue_export.choice import FLIP_POWER, Choice, improved, ladders, plan_of, smallest
from mothertongue_export.comparison import HeldoutText, compare, feed_in_pieces, language_parity, summed
from mothertongue_export.graph import write_device_graph
from mothertongue_export.oracle import Oracle
from mothertongue_export.parity import Gate, gate_limits
from mothertongue_export.pytorch import PyTorchModel
from mothertongue_export.quantization import FLOAT, Plan
from mothertongue_trainer.progress import Progress
from mothertongue_trainer.recipe import ExportConfig

# A trial runs many tokens at once. The proof goes token by token, with kernels that round otherwise, and that
# moved clear flips by a third on nano.
TRIAL_SHARE = 0.7
FLIPS = "clear_flips_percent"


def fit_graph(folder: Path, oracle: Oracle, config: ExportConfig, *, progress: Progress) -> list[Choice]:
    """Write the device graph of the oracle's checkpoint into `folder` and return how each matrix is stored.

    If no choice holds the gates, the best one is written and the proof says what it misses.
    """
    if config.weights == "fp32":
        progress("Writing the graph", 0, None)
        write_device_graph(oracle.checkpoint, folder, plan=Plan(default=FLOAT))
        return []
    progress("Measuring every matrix in every storage", 0, None)
    calibration = calibrate(
        oracle.model, oracle.calibration_ids, *ladders(config), fitting_rows=oracle.fitting_ids
    )
    choices = smallest(calibration)
    while True:
        progress("Writing the graph", 0, None)
        write_device_graph(oracle.checkpoint, folder, plan=plan_of(choices, calibration, config))
        missed = worst_missed(try_out(folder, oracle.model, oracle.texts, config, progress=progress))
        if missed is None:
            return choices
        excess = missed.value / missed.limit if missed.limit > 0 else float("inf")
        if missed.name == FLIPS:
            excess **= 1 / FLIP_POWER
        better = improved(choices, calibration, excess=excess, because=f"{missed.name} {missed.value:.3g}")
        if better is None:
            return choices
        choices = better


def try_out(
    folder: Path,
    model: PyTorchModel,
    texts: Sequence[HeldoutText],
    config: ExportConfig,
    *,
    progress: Progress,
) -> list[Gate]:
    """Return the gates that storage decides, for the graph in `folder` fed in pieces."""
    session = Session.open(folder)
    agreements = []
    for number, text in enumerate(texts):
        progress("Trying this storage", number, len(texts))
        ids = text.ids[:-1]
        agreements.append(compare(model.logits([ids])[0], feed_in_pieces(session, ids), text.ids[1:]))
    increase, limits = gate_limits(config)
    figures = summed(agreements)
    gates = [
        Gate(name=name, value=figures[name], limit=TRIAL_SHARE * limits[name]) for name in ("kl_mean", FLIPS)
    ]
    for code, parity in language_parity(texts, agreements).items():
        limit = TRIAL_SHARE * increase
        gates.append(Gate(name=f"increase of {code}", value=parity.increase_percent, limit=limit))
    return gates


def worst_missed(gates: Sequence[Gate]) -> Gate | None:
    """Return the gate that is missed by the largest factor, None if all hold."""
    missed = [gate for gate in gates if not gate.passed]
    return max(missed, key=lambda gate: gate.value / max(gate.limit, 1e-12), default=None)

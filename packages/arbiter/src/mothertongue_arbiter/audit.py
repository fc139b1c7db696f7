"""Audit a training run: ask everything its members allow, and write down what was not asked.

    class Mine:
        model = build_model()

        def batch(self, step): return load_batch(step)
        def loss(self, model, batch): return cross_entropy(model(batch["input_ids"]), batch["labels"])

    certificate = audit(Mine())
    certificate.verdict  # PASS, FAIL or INCONCLUSIVE; certificate.checks say why

Each further member of `TrainingRun` unlocks more checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mothertongue_arbiter.certificate import Certificate, Check, NotRun
from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.run import TrainingRun


@dataclass(frozen=True, kw_only=True)
class Options:
    """How much is asked. `rows` limits the batch that is differentiated in float64, the costly part."""

    random_directions: int = 2
    rows: int | None = None  # of the batch; default: all
    seed: int = 0  # of directions, dropout and probes
    progress: Callable[[str], None] | None = None  # called with the name of each check before it runs
    answered: Callable[[Check | NotRun], None] | None = None  # called with each answer when it is there
    modules: tuple[str, ...] = ()  # of the program, which made the run: the certificate depends on their code


def chosen_options(run: TrainingRun) -> Options:
    """Return the options that `run` carries, or the defaults."""
    options = getattr(run, "options", None)
    return options if isinstance(options, Options) else Options()


def audit(run: TrainingRun, *, step: int = 0, options: Options | None = None) -> Certificate:
    """Return the certificate of `run` at optimizer step `step`. The run is left exactly as it was.

    Without `options`, those that the run carries. A tensor that cannot learn at step 0 is forgiven (a
    zero-initialised projection); audited after some steps, it must be declared `conditional`.

    Raises:
        ArbiterError: `run` lacks a required member, or its model or loss cannot be used at all.
    """
    missing = [name for name in ("model", "loss", "batch") if not hasattr(run, name)]
    if missing:
        raise ArbiterError(
            f"{type(run).__name__}: no {', '.join(missing)}; a training run needs model, loss, batch"
        )
    try:
        from mothertongue_arbiter.torch.battery import certify
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ArbiterError("auditing a run needs torch: pip install 'mothertongue-arbiter[torch]'") from None
    return certify(run, step=step, options=options or chosen_options(run))

"""The battery: every check, in the order in which the run is disturbed least."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from statistics import median

import torch

from mothertongue_arbiter.audit import Options
from mothertongue_arbiter.certificate import Certificate, Check, NotRun, Verdict
from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.judgement import Judge
from mothertongue_arbiter.run import TrainingRun
from mothertongue_arbiter.scope import revision
from mothertongue_arbiter.torch.data import labels
from mothertongue_arbiter.torch.data.initial_loss import initial_loss
from mothertongue_arbiter.torch.forward import influence, modes, probes
from mothertongue_arbiter.torch.forward.packing import packing_independence
from mothertongue_arbiter.torch.forward.padding import padding_independence, unless_padding_learns
from mothertongue_arbiter.torch.forward.positions import positions_used
from mothertongue_arbiter.torch.forward.shifting import position_shift
from mothertongue_arbiter.torch.gradients.accumulation import accumulation
from mothertongue_arbiter.torch.gradients.compiled import compiled_gradients
from mothertongue_arbiter.torch.gradients.elsewhere import also_elsewhere
from mothertongue_arbiter.torch.gradients.localisation import located, located_between
from mothertongue_arbiter.torch.gradients.rounding import (
    OwnPrecision,
    determinism,
    lower_casts,
    measure_rounding,
    own_precision,
)
from mothertongue_arbiter.torch.gradients.tables import table_precision
from mothertongue_arbiter.torch.optimizer.averages import averaged_weights
from mothertongue_arbiter.torch.optimizer.bookkeeping import coverage, ties
from mothertongue_arbiter.torch.optimizer.dtypes import kept_dtypes
from mothertongue_arbiter.torch.optimizer.handover import handed_gradient
from mothertongue_arbiter.torch.optimizer.steps import (
    Steps,
    movement,
    step_weights,
    take_steps,
    training_mode,
)
from mothertongue_arbiter.torch.optimizer.updates import update_parity
from mothertongue_arbiter.torch.program.battery import check_program
from mothertongue_arbiter.torch.reference.gradients import reference_gradients
from mothertongue_arbiter.torch.reference.logits import reference_forward
from mothertongue_arbiter.torch.run.backward import Backward, same_start
from mothertongue_arbiter.torch.run.precision import true_float64
from mothertongue_arbiter.torch.run.scope import scope_of
from mothertongue_arbiter.torch.run.state import preserved
from mothertongue_arbiter.torch.run.subject import ExactSubject, Subject, Unavailable


def certify(run: TrainingRun, *, step: int, options: Options) -> Certificate:
    """Return the certificate of a torch run; see `mothertongue_arbiter.audit`."""
    ledger = Ledger(options.progress, options.answered)
    with preserved(run):
        subject, own = _first_look(run, step, options)
        shapes = {name: tuple(parameter.shape) for name, parameter in run.model.named_parameters()}
        dtypes = {
            name: str(parameter.dtype).removeprefix("torch.")
            for name, parameter in run.model.named_parameters()
        }
        device = str(next(run.model.parameters()).device)
        with same_start(run.model, options.seed):
            rounding = _check_as_it_is(subject, ledger)
        with ledger.in_float64():
            _check_in_float64(subject, own, rounding, ledger)
    with preserved(run):
        _check_steps(subject, rounding, ledger)
    check_program(subject, ledger.run)
    return Certificate(
        step=step,
        checks=tuple(ledger.checks),
        not_run=tuple(ledger.not_run),
        shapes=shapes,
        dtypes=dtypes,
        seconds=round(ledger.seconds, 3),
        float64_seconds=round(ledger.float64_seconds, 3),
        step_seconds=median(subject.step_seconds) if subject.step_seconds else None,
        seeds={"directions": options.seed, "random numbers": options.seed},
        device=device,
        versions={
            "mothertongue-arbiter": version("mothertongue-arbiter"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        commit=(found := revision()).commit,
        dirty=found.dirty,
        scope=scope_of(run, options.modules),
        notes=tuple(getattr(run, "notes", ())),
    )


class Ledger:
    """Runs checks, and writes down their answers, their cost and their absence."""

    def __init__(
        self,
        progress: Callable[[str], None] | None,
        answered: Callable[[Check | NotRun], None] | None = None,
    ) -> None:
        self.checks: list[Check] = []
        self.not_run: list[NotRun] = []
        self.float64_seconds = 0.0
        self._progress = progress or (lambda name: None)
        self._answered = answered or (lambda answer: None)
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    @contextmanager
    def in_float64(self) -> Iterator[None]:
        """Count what is asked inside as work in float64."""
        begin = self.seconds
        try:
            yield
        finally:
            self.float64_seconds += self.seconds - begin

    def run(self, name: str, check: Callable[[], Check]) -> None:
        self._progress(name)
        begin = time.perf_counter()
        try:
            answer = check()
        except Unavailable as reason:
            seconds = round(time.perf_counter() - begin, 3)
            self.not_run.append(NotRun(name=name, reason=str(reason), seconds=seconds))
            self._answered(self.not_run[-1])
            return
        except Exception as error:  # the audited program may raise anything; that is an answer too
            answer = _unanswered(name, error)
        self.checks.append(replace(answer, name=name, seconds=round(time.perf_counter() - begin, 3)))
        self._answered(self.checks[-1])


def _first_look(run: TrainingRun, step: int, options: Options) -> tuple[Subject, Backward]:
    """Return the run and its gradient as they are; a program that fails here fails in training too."""
    try:
        subject = Subject(run, step=step, options=options)
        return subject, subject.own
    except ArbiterError:
        raise
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        message = (
            f"batch() and loss(): {type(error).__name__}: {first_line}; they must run before they are audited"
        )
        raise ArbiterError(message) from error


def _check_as_it_is(subject: Subject, ledger: Ledger) -> OwnPrecision:
    """Run what needs no float64 and moves nothing."""
    rounding = measure_rounding(subject)
    ledger.run("same step twice", lambda: determinism(subject, rounding))
    ledger.run("compiled gradients", lambda: compiled_gradients(subject, rounding))
    ledger.run("table precision", lambda: table_precision(subject))
    ledger.run("optimizer coverage", lambda: coverage(subject))
    ledger.run("tied weights", lambda: ties(subject))
    return rounding


def _check_in_float64(subject: Subject, own: Backward, rounding: OwnPrecision, ledger: Ledger) -> None:
    checks: dict[str, Callable[[ExactSubject], Check]] = {
        "finiteness": lambda exact: exact.judge.finiteness(exact.exact.loss),
        "gradient presence": lambda exact: also_elsewhere(
            exact, located(exact, exact.judge.presence()), Judge.presence
        ),
        "gradient values": _of_weights_alone(
            lambda exact: unless_padding_learns(
                exact, also_elsewhere(exact, located(exact, exact.judge.values()), Judge.values)
            )
        ),
        "dead elements": _of_weights_alone(lambda exact: located(exact, exact.judge.dead_elements())),
        "own precision": _of_weights_alone(
            lambda exact: located_between(exact, own_precision(exact, own, rounding))
        ),
        "float64": lower_casts,
        "labels": labels.labels,
        "loss weights": labels.weights,
        "initial loss": initial_loss,
        "accumulation": accumulation,
        "causality": _stirred(probes.causality),
        "independent rows": _stirred(probes.independent_rows),
        "isolated documents": _stirred(probes.isolated_documents),
        "token influence": _stirred(influence.token_influence),
        "order sensitivity": _stirred(influence.order_sensitivity),
        "packing independence": _stirred(packing_independence),
        "padding independence": _stirred(padding_independence),
        "position shift": _stirred(position_shift),
        "positions used": _stirred(positions_used),
        "reference forward": _stirred(reference_forward),
        "reference gradients": reference_gradients,
    }
    with true_float64(subject.run.model) as mode:
        try:
            exact = ExactSubject(subject, mode)
        except Exception as error:
            reason = ArbiterError(f"float64 is impossible here: {error}")
            for name in checks:
                ledger.checks.append(_unanswered(name, reason))
            return
        for name, check in checks.items():
            ledger.run(name, lambda check=check: check(exact))  # type: ignore[misc]


def _of_weights_alone(check: Callable[[ExactSubject], Check]) -> Callable[[ExactSubject], Check]:
    """Return `check`, whose FAIL says nothing where the loss depends on the weights by buffers as well."""

    def alone(subject: ExactSubject) -> Check:
        found = check(subject)
        if found.verdict == Verdict.FAIL and subject.has_moving_state:
            raise Unavailable(
                "each forward moves buffers that the loss depends on, as a power iteration does: "
                "their part of the derivative is in no gradient"
            )
        return found

    return alone


def _stirred(check: Callable[[ExactSubject], Check]) -> Callable[[ExactSubject], Check]:
    def stirred(subject: ExactSubject) -> Check:
        with subject.stirred():
            return check(subject)

    return stirred


def _check_steps(subject: Subject, rounding: OwnPrecision, ledger: Ledger) -> None:
    taken = _once(lambda: take_steps(subject))
    ledger.run("gradient handed over", lambda: handed_gradient(subject, taken(), rounding))
    ledger.run("step weights", lambda: step_weights(subject, taken()))
    ledger.run("movement", lambda: movement(subject, taken()))
    with ledger.in_float64():  # each rule is replayed in it
        ledger.run("update parity", lambda: update_parity(subject, taken(), rounding))
    ledger.run("moving average", lambda: averaged_weights(subject, taken()))
    ledger.run("dtypes", lambda: kept_dtypes(subject, taken()))
    ledger.run("dropout", lambda: modes.dropout(subject))
    ledger.run("training mode", lambda: training_mode(subject, taken()))
    ledger.run("evaluation mode", lambda: modes.evaluation_mode(subject))


def _once(make: Callable[[], Steps]) -> Callable[[], Steps]:
    """Return what `make` makes, and raises, the first time: a step that fails is not taken again."""

    @cache
    def outcome() -> Steps | Exception:
        try:
            return make()
        except Exception as error:  # of the audited program
            return error

    def once() -> Steps:
        found = outcome()
        if isinstance(found, Exception):
            raise found
        return found

    return once


def _unanswered(name: str, error: Exception) -> Check:
    first_line = (str(error).splitlines() or [""])[0]
    evidence = f"{type(error).__name__}: {first_line}"
    if not isinstance(error, ArbiterError):
        evidence = f"could not be asked, the program or a library it uses raised {evidence}"
    return Check(name=name, verdict=Verdict.INCONCLUSIVE, evidence=evidence)

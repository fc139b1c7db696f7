"""Judge the gradients of one backward pass by the finite differences of its loss; no framework needed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from mothertongue_arbiter.bisection import locate
from mothertongue_arbiter.certificate import Check, Finding, TensorVerdict, Verdict
from mothertongue_arbiter.difference import (
    Floor,
    Measurement,
    Witness,
    depends,
    disagrees,
    measure,
    measure_floor,
    moves,
)
from mothertongue_arbiter.direction import Direction
from mothertongue_arbiter.run import Declared
from mothertongue_arbiter.unscaled import Unscaled

LARGEST_NOISE = 1e-9  # relative; a loss that repeats no better cannot tell a small derivative from none
LARGEST_LOSS_ERROR = 1e-6  # relative; a frame may state its loss in float32
SPARE_DIRECTIONS = 6  # for those that a kink makes useless
SHOWN = 6  # findings that the one line of evidence names


class Judge:
    """Asks one witness about its gradients.

    At step 0 a tensor that cannot learn yet is forgiven, later it is not.
    """

    def __init__(
        self, witness: Witness, declared: Declared, *, step: int, random_directions: int = 2
    ) -> None:
        factors = {
            name: factor for name in witness.names() if (factor := declared.scale_of(name)) not in (0, 1)
        }
        self.witness: Witness = Unscaled(witness=witness, factors=factors) if factors else witness
        self.declared = declared
        self.step = step
        self.random_directions = random_directions
        self.norms = {name: witness.gradient_norm(name) for name in witness.names()}
        self._floor: Floor | None = None

    @property
    def floor(self) -> Floor:
        if self._floor is None:
            self._floor = measure_floor(self.witness)
        return self._floor

    def same_loss(self, loss: float) -> Check:
        """The oracle stands where the frame was taken: its loss is that of the frame."""
        apart = abs(self.floor.loss - loss) - self.floor.spread
        same = apart <= LARGEST_LOSS_ERROR * max(abs(loss), 1.0)
        return Check(
            name="loss of the oracle",
            verdict=Verdict.PASS if same else Verdict.FAIL,
            evidence=f"{self.floor.loss:.9g}, the frame says {loss:.9g}",
            cause=""
            if same
            else "another batch, other weights or other random numbers than those of the frame",
        )

    def finiteness(self, loss: float) -> Check:
        """Every gradient and the loss are finite numbers."""
        bad = [name for name, norm in self.norms.items() if norm is not None and not math.isfinite(norm)]
        if not math.isfinite(loss):
            return Check(name="finiteness", verdict=Verdict.FAIL, evidence=f"the loss is {loss}")
        return Check(
            name="finiteness",
            verdict=Verdict.FAIL if bad else Verdict.PASS,
            evidence=f"not finite: {named(bad)}" if bad else f"loss {loss:.4f}, all gradients finite",
            cause="an overflow, a division by zero or an untaken branch of where()" if bad else "",
            findings=tuple(Finding(subject=name, verdict=TensorVerdict.NONFINITE) for name in bad),
        )

    def presence(self) -> Check:
        """Every tensor on which the loss depends has a gradient."""
        absent = [name for name, norm in self.norms.items() if not norm]
        asked = [name for name in absent if not self._excused(name)]
        severed = self._guilty(asked, along="signs") or self._constant_in_steps(asked)
        dead = [name for name in asked if name not in severed]
        late = [name for name in dead if self.step > 0 and not self.declared.may_be_unused(name)]
        findings = [_finding(name, TensorVerdict.SEVERED, "the loss depends on it") for name in severed]
        for name in dead:
            verdict = TensorVerdict.DEAD_AFTER_K if name in late else TensorVerdict.DEAD_HERE
            findings.append(_finding(name, verdict, "neither gradient nor derivative"))
        findings += [_finding(name, TensorVerdict.DECLARED) for name in absent if name not in asked]
        if severed:
            evidence = (
                f"{len(severed)} severed (no gradient, yet the loss depends on them); nearest the loss: "
                f"{named(severed)}"
            )
            cause = f"an operation without backward, or detach(), just after {severed[0]}"
        elif late:
            evidence = f"{len(late)} dead after {self.step} steps and not declared conditional: {named(late)}"
            cause = "a module that nothing uses, or a router that collapsed"
        else:
            evidence = f"{len(self.norms) - len(absent)} of {len(self.norms)} tensors have a gradient"
            evidence += f"; {len(dead)} cannot learn here (zero gradient, zero derivative)" if dead else ""
            cause = ""
        return Check(
            name="gradient presence",
            verdict=self._unless_silent(bool(severed or late), asked=bool(asked)),
            evidence=evidence,
            cause=cause,
            findings=tuple(findings),
        )

    def dead_elements(self) -> Check:
        """No part of a tensor is cut off: where its gradient is zero, the loss does not depend on it."""
        alive = self._alive()
        partly = self._guilty(alive, along="zeros")
        return Check(
            name="dead elements",
            verdict=self._unless_silent(bool(partly), asked=bool(alive)),
            evidence=f"elements without gradient on which the loss depends: {named(partly)}"
            if partly
            else "where a gradient is zero, so is the derivative",
            cause="a backward that writes only part of its buffer" if partly else "",
            findings=tuple(_finding(name, TensorVerdict.PARTLY_DEAD) for name in partly),
        )

    def values(self, *, along_itself: bool = True) -> Check:
        """The gradient is the derivative of the loss: along random signs and along itself."""
        alive = self._alive()
        if not alive:
            return Check(name="gradient values", verdict=Verdict.INCONCLUSIVE, evidence="no gradient to test")
        first = [self._direction(alive, "gradient")] if along_itself else []
        needed = self.random_directions + len(first)
        others = (
            self._direction(alive, "signs", i) for i in range(self.random_directions + SPARE_DIRECTIONS)
        )
        measurements: list[Measurement] = []
        for direction in itertools.chain(first, others):
            measurements.append(measure(self.witness, direction, self.floor))
            if measurements[-1].verdict == "WRONG":
                return self._wrong(alive, direction, measurements[-1])
            certain = [one for one in measurements if one.verdict == "OK"]
            # A kink lies on one line and not on another; noise lies on all.
            if len(certain) == needed or (measurements[-1].verdict != "OK" and not measurements[-1].kinked):
                break
        is_certain = len(certain) == needed
        worst = max(certain if is_certain else measurements, key=lambda one: one.relative_error)
        evidence = f"relative error {worst.relative_error:.1e} along {needed} directions, float64"
        if is_certain and len(measurements) > needed:
            evidence += f", after {len(measurements) - needed} that met a kink"
        return Check(
            name="gradient values",
            verdict=Verdict.PASS if is_certain else Verdict.INCONCLUSIVE,
            evidence=evidence if is_certain else f"{evidence}: {self._doubt(measurements)}",
        )

    def _wrong(self, alive: list[str], direction: Direction, measurement: Measurement) -> Check:
        def is_faulty(names: list[str]) -> bool:
            return disagrees(self.witness, direction.only(names), self.floor)

        culprits = locate(alive, is_faulty)
        names = list(culprits.names) or alive
        after = alive[alive.index(names[0]) + 1 : alive.index(names[0]) + 2]
        between = f"between {names[0]} and {after[0]}" if after else f"after {names[0]}"
        count = f"{len(names)}" if culprits.complete else f"at least {len(names)}"
        return Check(
            name="gradient values",
            verdict=Verdict.FAIL,
            evidence=f"relative error {measurement.relative_error:.1e}, {count} of {len(alive)} tensors; "
            f"nearest the loss: {named(names)}",
            cause=f"a wrong backward {between}",
            findings=tuple(_finding(name, TensorVerdict.WRONG) for name in names),
        )

    def _guilty(self, names: list[str], *, along: str) -> list[str]:
        """Return those of `names`, nearest the loss first, whose zero gradient the loss contradicts."""
        if not names:
            return []

        def is_faulty(group: list[str]) -> bool:
            return disagrees(self.witness, self._direction(group, along), self.floor)

        direction = self._direction(names, along)
        if not moves(self.witness, direction, self.floor):
            return []
        if measure(self.witness, direction, self.floor).verdict != "WRONG":
            return []
        return list(locate(names, is_faulty).names)

    def _constant_in_steps(self, names: list[str]) -> list[str]:
        """Return those of `names`, nearest the loss first, that move the loss by jumps, as behind a rounding.

        Each is moved alone: two zero factors of one product move the loss together, and can learn.
        """
        if not names or not depends(self.witness, self._direction(names, "signs"), self.floor):
            return []
        return [
            name
            for name in reversed(names)
            if depends(self.witness, self._direction([name], "signs"), self.floor)
        ]

    def _direction(self, names: Sequence[str], along: str, number: int = 0) -> Direction:
        scales = {name: self.witness.scale(name) for name in names}
        return Direction(seed=self.witness.seed + number, scales=scales, along=along)  # type: ignore[arg-type]

    def _alive(self) -> list[str]:
        return [
            name
            for name, norm in self.norms.items()
            if norm and math.isfinite(norm) and not self._excused(name)
        ]

    def _excused(self, name: str) -> bool:
        declared = self.declared
        return declared.is_frozen(name) or declared.expects_disagreement(name) or declared.scale_of(name) == 0

    def _unless_silent(self, failed: bool, *, asked: bool) -> Verdict:
        if failed:
            return Verdict.FAIL
        blind = self.floor.single_precision or self.floor.noise > LARGEST_NOISE * max(
            abs(self.floor.loss), 1.0
        )
        return Verdict.INCONCLUSIVE if asked and blind else Verdict.PASS

    def _doubt(self, measurements: list[Measurement]) -> str:
        if any(one.single_precision for one in measurements):
            return "every loss is a float32 number; certify in float64"
        if any(one.verdict == "NONFINITE" for one in measurements):
            return "a slope is not finite"
        if any(one.verdict == "INCONCLUSIVE" and one.kinked for one in measurements):
            return "on each line that was tried the loss has kinks (ReLU, rounding, routing) too close by"
        return f"the loss is too noisy (it repeats to {self.floor.spread:.1e})"


def off_by(names: Sequence[str], far: Mapping[str, float]) -> tuple[Finding, ...]:
    """Return one finding for each of `names` whose gradient is `far` from what it should be, relative."""
    return tuple(_finding(name, TensorVerdict.WRONG, f"off by {far[name]:.1e}") for name in names)


def named(names: Sequence[str]) -> str:
    """Return the first few of `names`, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _finding(name: str, verdict: TensorVerdict, detail: str = "") -> Finding:
    return Finding(subject=name, verdict=verdict, detail=detail)

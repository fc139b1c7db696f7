"""Audit a `transformers.Trainer` before its first step, and watch it afterwards.

    trainer = Trainer(...)
    trainer.add_callback(ArbiterCallback(trainer))
    trainer.train()                       # raises AuditFailed, with the page, if a check fails

The certificate is written to `output_dir/audit/certificate.json`, what the monitor saw to `monitor.json`
beside it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from mothertongue_arbiter.audit import Options, audit
from mothertongue_arbiter.certificate import Certificate, NotRun, Verdict
from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.monitoring import sentences
from mothertongue_arbiter.refusal import refuse
from mothertongue_arbiter.run import Declared
from mothertongue_arbiter.torch.monitor import Monitor
from mothertongue_arbiter.torch.trainer_run import TrainerRun, epoch_steps
from mothertongue_arbiter.view import text_page

try:
    from transformers import TrainerCallback  # noqa: TID251 - the adapter for it; nothing else imports it
except ModuleNotFoundError as error:
    if error.name != "transformers":
        raise
    raise ArbiterError("auditing a Trainer needs transformers: pip install 'transformers[torch]'") from None

log = logging.getLogger(__name__)


class ArbiterCallback(TrainerCallback):
    """Refuses to train on a failed audit, unless `despite_audit`; warns about the rest through `logging`.

    `declared` replaces what is read from the model's config and the arguments of `trainer`. `options` says
    how much is asked, `monitor=False` leaves the training unwatched.
    """

    def __init__(
        self,
        trainer: Any,
        *,
        declared: Declared | None = None,
        options: Options | None = None,
        despite_audit: bool = False,
        monitor: bool = True,
    ) -> None:
        self.certificate: Certificate | None = None
        self.monitor: Monitor | None = None
        self._trainer = trainer
        self._declared = declared
        self._options = options
        self._despite_audit = despite_audit
        self._watches = monitor
        self._given_optimizer = trainer.optimizer is not None  # then the arguments declare nothing about it
        self._seen: Any = None  # stands in the place of the Trainer's `training_step`
        self._own_step: Any = None  # what stood there, if it was not the method of the class
        self._inputs: list[Any] = []
        self._losses: list[Tensor] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Audit; raises AuditFailed."""
        if args.world_size > 1:
            log.warning("not audited: %d processes; audit the same run with one first", args.world_size)
        else:
            self._audit(args, state)
        if self._watches:
            self._watch()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Look at the step that was just done; gradients are still there."""
        if self.monitor is not None:
            loss = sum(self._losses) if self._losses else None
            self._warn(self.monitor.observe(state.global_step, self._inputs or None, loss))
        self._inputs, self._losses = [], []

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write what the monitor saw."""
        if self.monitor is not None:
            self._warn(self.monitor.close())
            self.monitor.write(Path(args.output_dir) / "audit" / "monitor.json")
            self._unwrap()

    def _audit(self, args: Any, state: Any) -> None:
        run = TrainerRun(self._trainer, declared=self._declared)
        if self._declared is None and not self._given_optimizer:
            run.declared = replace(run.declared, optimizer=run.declared_optimizer())
        certificate = audit(run, step=state.global_step, options=self._options)
        if getattr(run.model.config, "name_or_path", ""):
            certificate = _without_initial_loss(certificate, "the weights come from a checkpoint")
        elif run.has_own_loss:
            certificate = _without_initial_loss(certificate, "the program has a `compute_loss` of its own")
        self.certificate = certificate
        certificate.write(Path(args.output_dir) / "audit" / "certificate.json")
        if not self._despite_audit:
            refuse(certificate)
        if certificate.verdict != Verdict.PASS:
            log.warning("the training goes on without a good certificate\n%s", text_page(certificate))

    def _watch(self) -> None:
        self._unwrap()  # a training that broke off before
        trainer = self._trainer
        declared = self._declared or Declared(epoch_steps=epoch_steps(trainer))
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        scaler = getattr(trainer.accelerator, "scaler", None)
        self.monitor = Monitor(trainer.model, optimizer, declared=declared, scaler=scaler)
        self._own_step = vars(trainer).get("training_step")
        step = trainer.training_step

        def seen(model: Any, inputs: Any, *rest: Any, **named: Any) -> Tensor:
            loss: Tensor = step(model, inputs, *rest, **named)
            self._inputs.append(dict(inputs))
            self._losses.append(loss)
            return loss

        trainer.training_step = self._seen = seen

    def _unwrap(self) -> None:
        """Give the Trainer its own `training_step` again."""
        if self._seen is not None:
            del self._trainer.training_step
            if self._own_step is not None:
                self._trainer.training_step = self._own_step
        self._seen = None

    def _warn(self, findings: Any) -> None:
        for line in sentences(findings):
            log.warning("%s", line)


def _without_initial_loss(certificate: Certificate, because: str) -> Certificate:
    """Leave out the check of the loss of an untrained model, about which nothing is known here."""
    name = "initial loss"
    absent = NotRun(name=name, reason=f"{because}, so nothing is known about it")
    kept = tuple(check for check in certificate.checks if check.name != name)
    return replace(certificate, checks=kept, not_run=(*certificate.not_run, absent))

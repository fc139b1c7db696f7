"""Certify a training run: catch the faults that a loss curve hides."""

from mothertongue_arbiter.audit import Options, audit
from mothertongue_arbiter.certificate import Certificate, Check, Verdict
from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.run import Declared, TrainingRun

__all__ = ["ArbiterError", "Certificate", "Check", "Declared", "Options", "TrainingRun", "Verdict", "audit"]
__version__ = "0.1.0"

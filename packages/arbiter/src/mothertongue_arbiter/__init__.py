"""Certify a training run: catch the faults that a loss curve hides."""

from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.run import Declared, TrainingRun

__all__ = ["ArbiterError", "Declared", "TrainingRun"]

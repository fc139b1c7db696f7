import contextlib
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "benchmarks")]  # zoo.py, and the package faults


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def exact():
    """Put a run into float64, as the battery does, and return what its checks are given."""
    from mothertongue_arbiter.audit import Options
    from mothertongue_arbiter.torch.run.precision import true_float64
    from mothertongue_arbiter.torch.run.subject import ExactSubject, Subject

    with contextlib.ExitStack() as stack:

        def convert(run):
            subject = Subject(run, step=0, options=Options())
            return ExactSubject(subject, stack.enter_context(true_float64(run.model)))

        yield convert


@pytest.fixture
def subject():
    """Return what the checks in the run's own precision are given."""
    from mothertongue_arbiter.audit import Options
    from mothertongue_arbiter.torch.run.subject import Subject

    return lambda run: Subject(run, step=0, options=Options())

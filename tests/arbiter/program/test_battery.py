from shuffled import ShuffledRun
from zoo import ZooRun

from mothertongue_arbiter import Declared, Verdict, audit
from mothertongue_arbiter.torch.program.battery import CHECKS


def test_a_sound_program_of_two_ranks_passes_and_is_asked_everything():
    certificate = audit(ShuffledRun(dropout=0.0))
    asked = {check.name: check.verdict for check in certificate.checks}
    assert certificate.verdict == Verdict.PASS, [c for c in certificate.checks if c.verdict != Verdict.PASS]
    assert set(CHECKS) - set(asked) <= {"throughput"}


def test_what_the_run_does_not_have_is_listed_with_its_reason():
    class Least:
        def __init__(self):
            whole = ZooRun()
            self.model, self.loss, self.batch = whole.model, whole.loss, whole.batch
            self.declared = Declared()

    absent = {one.name: one.reason for one in audit(Least()).not_run}
    assert "`train_step`" in absent["resume"]

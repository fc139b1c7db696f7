import pytest
from faults import FAULTS

from mothertongue_arbiter import Verdict, audit


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_fault_is_caught(fault):
    run = fault.run()
    fault.inject(run)
    certificate = audit(run)
    failed = {check.name for check in certificate.checks if check.verdict == Verdict.FAIL}
    assert set(fault.caught_by) <= failed, [check for check in certificate.checks if check.verdict != "PASS"]
    assert certificate.verdict == Verdict.FAIL

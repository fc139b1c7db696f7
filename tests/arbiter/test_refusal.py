import pytest

from mothertongue_arbiter.certificate import Certificate, Check, Verdict
from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.refusal import AuditFailed, refuse


def certificate(verdict):
    check = Check(name="labels", verdict=verdict, evidence="12 of 12 positions")
    return Certificate(step=0, checks=(check,), not_run=(), shapes={}, dtypes={}, seconds=0.1)


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.INCONCLUSIVE])
def test_what_did_not_fail_is_handed_on(verdict):
    assert refuse(certificate(verdict)).verdict == verdict


def test_a_failure_shows_the_page_and_is_exit_code_1():
    with pytest.raises(AuditFailed, match="12 of 12 positions") as refused:
        refuse(certificate(Verdict.FAIL))
    assert isinstance(refused.value, ArbiterError)
    assert refused.value.exit_code == 1
    assert "\x1b" not in str(refused.value)

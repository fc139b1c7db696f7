"""A part of the fault zoo of benchmarks/faults, two faults a family; each check has its own tests, too."""

import pytest
from faults.families import FAMILIES
from faults.zoo import FAULTS

from mothertongue_arbiter import Verdict, audit

A_FAMILY = 2


def part():
    """Return, of each family, the first faults that need a check which no earlier one needs."""
    needed, chosen = set(), []
    for family in FAMILIES:
        faults = sorted((one for one in FAULTS if one.family == family), key=lambda fault: fault.name)
        for fault in faults:
            enough = sum(one.family == family for one in chosen) == A_FAMILY
            if not enough and not set(fault.caught_by) <= needed:
                needed |= set(fault.caught_by)
                chosen.append(fault)
    return chosen


PART = part()


@pytest.mark.parametrize("fault", PART, ids=lambda fault: fault.name)
def test_the_fault_is_caught(fault):
    certificate = audit(fault.make())
    failed = {check.name for check in certificate.checks if check.verdict == Verdict.FAIL}
    assert set(fault.caught_by) <= failed, [check for check in certificate.checks if check.verdict != "PASS"]
    assert certificate.verdict == Verdict.FAIL


def test_the_part_has_every_family():
    assert {fault.family for fault in PART} == set(FAMILIES)


def test_the_zoo_is_as_large_as_it_says():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 70
    assert all(fault.source for fault in FAULTS)


def test_a_gradient_fault_says_where_it_is():
    silent = {"a9", "a11", "a14", "b13", "b20", "b25"}  # everywhere, or nowhere in particular
    for fault in FAULTS:
        if fault.family in "ab" and fault.name.split("_")[0] not in silent:
            assert fault.where, fault.name

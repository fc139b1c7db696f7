"""The fixture `arbiter`: a test that audits a training run.

    def test_gradients(arbiter):
        arbiter(my_run)                               # fails with the page of the certificate

    def test_after_a_while(arbiter):
        certificate = arbiter.check(my_run, step=50, allow={"initial loss"})

pytest loads this module at every start, so it imports nothing heavy; torch comes with the first audit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from mothertongue_arbiter import Certificate, Options


class Arbiter:
    """Audits a run inside a test. To call it is to `check` with nothing allowed."""

    def __call__(self, run: Any, *, step: int = 0, options: Options | None = None) -> Certificate:
        return self.check(run, step=step, options=options)

    def check(
        self, run: Any, *, step: int = 0, allow: Collection[str] = (), options: Options | None = None
    ) -> Certificate:
        """Return the certificate of `run`; fail the test, and show the page, unless it says PASS.

        `allow` names the checks that may answer something else than PASS; a name that no check has is an
        error, so that a list of exceptions cannot outlive its reasons.
        """
        from mothertongue_arbiter import ArbiterError, Verdict, audit
        from mothertongue_arbiter.view import text_page

        try:
            certificate = audit(run, step=step, options=options)
        except ArbiterError as error:
            pytest.fail(f"this run cannot be audited: {error}", pytrace=False)
        names = {check.name for check in certificate.checks}
        names |= {absent.name for absent in certificate.not_run}
        if unknown := sorted(set(allow) - names):
            pytest.fail(f"allow: no check named {', '.join(unknown)}", pytrace=False)
        asked = tuple(check for check in certificate.checks if check.name not in allow)
        if replace(certificate, checks=asked).verdict != Verdict.PASS:
            pytest.fail(f"the arbiter does not pass this run\n{text_page(certificate)}", pytrace=False)
        return certificate


@pytest.fixture(scope="session")
def arbiter() -> Arbiter:
    """Audit a training run: `arbiter(run)` fails the test unless its certificate says PASS."""
    return Arbiter()

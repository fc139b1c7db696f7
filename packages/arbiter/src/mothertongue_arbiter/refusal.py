"""Refuse to go on with a run whose audit failed: an error that shows the page of the certificate."""

from __future__ import annotations

from mothertongue_arbiter.certificate import Certificate, Verdict
from mothertongue_arbiter.errors import ArbiterError


class AuditFailed(ArbiterError):
    """A check failed. The message is the one-page view; `certificate` is what it shows."""

    exit_code = 1

    def __init__(self, certificate: Certificate) -> None:
        from mothertongue_arbiter.view import text_page  # rich is slow to import, and few audits fail

        super().__init__(f"the audit failed\n{text_page(certificate)}")
        self.certificate = certificate


def refuse(certificate: Certificate) -> Certificate:
    """Return `certificate`, unless it says FAIL.

    Raises:
        AuditFailed: it says FAIL.
    """
    if certificate.verdict == Verdict.FAIL:
        raise AuditFailed(certificate)
    return certificate

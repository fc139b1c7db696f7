"""Refuse to go on with a run whose audit failed: an error that shows the page of the certificate."""

from __future__ import annotations

import io

from mothertongue_arbiter.certificate import Certificate, Verdict
from mothertongue_arbiter.errors import ArbiterError

PAGE_COLUMNS = 110


class AuditFailed(ArbiterError):
    """A check failed. The message is the one-page view; `certificate` is what it shows."""

    exit_code = 1

    def __init__(self, certificate: Certificate) -> None:
        super().__init__(f"the audit failed\n{page_text(certificate)}")
        self.certificate = certificate


def refuse(certificate: Certificate) -> Certificate:
    """Return `certificate`, unless it says FAIL.

    Raises:
        AuditFailed: it says FAIL.
    """
    if certificate.verdict == Verdict.FAIL:
        raise AuditFailed(certificate)
    return certificate


def page_text(certificate: Certificate) -> str:
    """Return the one-page view of `certificate` as plain text."""
    from rich.console import Console

    from mothertongue_arbiter.view import page

    file = io.StringIO()
    Console(file=file, width=PAGE_COLUMNS, no_color=True, highlight=False).print(page(certificate))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

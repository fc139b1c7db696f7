"""How long torch's threads wait by spinning before they sleep.

Measured on two cores, tokens/s of nano in training (docs/log.md): alone, the default of OpenMP is 5 % faster
than 3,000 spins; beside one busy process it is 40 % slower. A laptop is never ours alone.
"""

from __future__ import annotations

import os

SPINS = 3_000


def share_the_machine() -> None:
    """Let waiting threads sleep early; call it before torch loads, which reads this once."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))

"""Everything in the zoo, family by family."""

from faults import (  # noqa: F401 - importing a family registers it
    data,
    forward,
    gradients,
    lifecycle,
    loops,
    normalisation,
    objectives,
    optimization,
    ranks,
    second_author,
    severed,
    training,
    variants,
)
from faults.fault import FAULTS as FAULTS
from faults.healthy import HEALTHY as HEALTHY

"""The one error of the arbiter."""


class ArbiterError(Exception):
    """What was handed to the arbiter cannot be audited; the message says where, what and what to do."""

    exit_code = 2  # bad usage or bad input

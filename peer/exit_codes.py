"""What the exit codes of both programs say. Codes are as `subprocess` has them: -n after signal n.

Only the standard library, as the command line and the job on a cluster's nodes import this and wait for it.
"""

import signal

DONE, FAILED, WRONG_INPUT = 0, 1, 2
"""At a peer's first start the last is final: the same input would be refused again."""
STOPS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
"""The exit code of a launcher after each signal that ends it."""
STOPPED = (128 + signal.SIGTERM, 128 + signal.SIGINT, -signal.SIGTERM, -signal.SIGINT)
"""Of a peer after SIGTERM or SIGINT: with a checkpoint, or before the peer could handle signals at all."""


def of_container(code: int) -> int:
    """Return the code for one reported by a container engine, where 128 + n stands for signal n.

    After SIGTERM and SIGINT, though, 128 + n is the peer's own code.
    """
    return code if code <= 128 or code in STOPPED else 128 - code


def in_words(code: int) -> str:
    """Return how the process ended, such as "was killed by SIGKILL"."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"


def signal_name(number: int) -> str:
    """Return a name such as SIGKILL; real-time signals have numbers only."""
    return signal.Signals(number).name if number in [*signal.Signals] else f"signal {number}"

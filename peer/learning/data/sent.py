"""Can what workers are to read be sent to a process of its own? Found out without starting one."""

import os
from multiprocessing.context import set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from peer.errors import InputError
from peer.learning.data.reading import Reading
from peer.plugins import in_words


def check_sendable(reading: Reading) -> None:
    """InputError with the way out where something of the user's cannot be sent."""
    # What may be sent at a process's start alone, such as a lock, asks whether one is being started.
    set_spawning_popen(_NoProcess())  # type: ignore[arg-type]
    try:
        with open(os.devnull, "wb") as nowhere:
            _WithoutNumbers(nowhere).dump(reading)
    except Exception as error:  # whatever an object of the user's raises
        raise not_sendable(reading, error) from error
    finally:
        set_spawning_popen(None)


def not_sendable(reading: Reading, error: Exception) -> InputError:
    """What is said of it."""
    return InputError(
        f"{reading.name} cannot be given to `workers`: {in_words(error)}; use no lambda and no open file in it, or set "
        "`workers: 0`"
    )


class _WithoutNumbers(ForkingPickler):
    """Leaves out what can always be sent and may be large."""

    def reducer_override(self, value: Any) -> Any:
        numbers = isinstance(value, Tensor) or (isinstance(value, np.ndarray) and not value.dtype.hasobject)
        return (str, ()) if numbers else NotImplemented


class _NoProcess:
    """In the place of the process that is being started."""

    DupFd: ClassVar[type[int]] = int

    def duplicate_for_child(self, descriptor: int) -> int:
        return descriptor

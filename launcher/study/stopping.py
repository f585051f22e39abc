"""Ctrl-C, SIGTERM or a closed terminal, as something that can be waited for beside processes."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from launcher.supervision.stop import STOPS


class Stopping:
    """code: of the exit, once somebody asks for it. descriptor: can be read from then on."""

    def __init__(self) -> None:
        self.code = 0
        self.descriptor, self._write = os.pipe()

    def _ask(self, number: int, _: FrameType | None) -> None:
        self.code = self.code or STOPS[signal.Signals(number)]
        os.write(self._write, b".")

    @classmethod
    @contextmanager
    def listening(cls) -> Iterator["Stopping"]:
        made = cls()
        former = {number: signal.signal(number, made._ask) for number in STOPS}
        try:
            yield made
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
            os.close(made.descriptor)
            os.close(made._write)

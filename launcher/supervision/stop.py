"""What a person asks of a launcher that runs: to end the peers, or to leave them to themselves."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

STOPS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
"""The exit code after each signal that ends a launcher."""


class Stop:
    """Ctrl-C, SIGTERM or a closed terminal; asked a second time, in a hurry.

    outlived: whether peers can go on without the launcher. Then a closed terminal leaves them to themselves.
    """

    def __init__(self, outlived: bool = False) -> None:
        self.asked, self.hurry = asyncio.Event(), asyncio.Event()
        self.code = 0
        self.leaves = False
        """Whether the peers are to go on."""
        self._outlived = outlived

    def ask(self, number: signal.Signals) -> None:
        if self.asked.is_set():
            self.hurry.set()
        elif number == signal.SIGHUP:
            self.leaves = self._outlived
        self.code = self.code or STOPS[number]
        self.asked.set()

    @contextmanager
    def listening(self) -> Iterator[Self]:
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self.ask, number)
        try:
            yield self
        finally:
            for number in STOPS:
                loop.remove_signal_handler(number)

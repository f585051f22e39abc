"""What lives as long as a round.

Nothing of it is in a checkpoint: a round that is played again makes all of it anew, and numbers its calls and its
values from the start, too (rule R1).
"""

import asyncio
from itertools import count

import numpy as np
from torch import Tensor

from peer.errors import InputError
from peer.learning.randomness import derive
from peer.network.collectives import Collectives, Pending
from peer.network.network import Network
from peer.protocols.base import Received, Resources
from peer.runtime.checkpoints import Journal
from peer.tasks import in_thread
from peer.telemetry.events import Note
from peer.telemetry.trace import Trace


class Round:
    """One round of one peer."""

    def __init__(self, number: int, network: Network, journal: Journal, trace: Trace | None = None) -> None:
        """trace: of the round's vectors; None: they are not kept."""
        self.number, self.network, self.trace = number, network, trace
        self.collectives = Collectives(network, number)
        self.exchanges: list[Pending[dict[str, Received]]] = []
        self.notes: dict[str, Note] = {}
        self.steps: list[int] = []
        """Of each phase whose length the data or the clock decides."""
        self.trained = False
        self.resources: Resources | None = None
        """As the protocol got them."""
        self._journal, self._numbers = journal, count()

    async def recall(self) -> tuple[int, Tensor | None]:
        """The number of the next value that is made once, and that value where a replay finds it."""
        number = next(self._numbers)
        return number, await asyncio.to_thread(self._journal.recall, self.number, number)

    async def keep(self, number: int, value: Tensor) -> Tensor:
        """Write a value; it is on disk when this returns. What is returned is what a replay will recall."""
        return await in_thread(self._journal.write, self.number, number, value)

    def shared_generator(self, seed: int, purpose: str) -> np.random.Generator:
        """Random numbers from which all members draw alike; `seed`: the run's."""
        view = f"view {self.network.identity.view}"
        return np.random.default_rng(derive(seed, view, self.number, purpose))

    def check_awaited(self, protocol: str) -> None:
        """InputError if the protocol did not wait for what it asked for."""
        if not all(exchange.awaited for exchange in self.exchanges):
            raise InputError(
                f"`{protocol}` calls `exchange` in round {self.number} and does not wait for it; write `await` before "
                "the call, or await what it returned"
            )

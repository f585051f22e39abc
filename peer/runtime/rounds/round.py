"""The state that lives as long as a round.

None of it is in a checkpoint: a round that is played again creates all of it anew, and numbers its calls and values
from the start again (rule R1).
"""

import asyncio
from itertools import count

import numpy as np
from torch import Tensor

from peer.learning.randomness import derive
from peer.network.collectives import Collectives
from peer.network.network import Network
from peer.protocols.base import Resources
from peer.runtime.checkpoints import Journal
from peer.tasks import in_thread
from peer.telemetry.events import Note
from peer.telemetry.trace import Trace


class Round:
    """One round of one peer."""

    def __init__(self, number: int, network: Network, journal: Journal, trace: Trace | None = None) -> None:
        """trace: records the round's vectors; None: they are not recorded."""
        self.number, self.network, self.trace = number, network, trace
        self.collectives = Collectives(network, number)
        self.notes: dict[str, Note] = {}
        self.steps: list[int] = []
        """The steps of each phase whose length depends on the data or the clock."""
        self.figures: dict[str, list[float]] = {}
        """What a training loop of the user's gave beside its loss, by name: a number for each phase."""
        self.trained = False
        self.resources: Resources | None = None
        """The resources that the protocol got in this round."""
        self.calculations = count()
        """The numbers of its calculations (`peer.compute`)."""
        self._journal, self._numbers = journal, count()

    async def recall(self) -> tuple[int, Tensor | None]:
        """The number of the next value that is made once, and the value if a replay finds it, else None."""
        number = next(self._numbers)
        return number, await asyncio.to_thread(self._journal.recall, self.number, number)

    async def keep(self, number: int, value: Tensor) -> Tensor:
        """Write a value, which is on disk when this returns; return it as a replay will recall it."""
        return await in_thread(self._journal.write, self.number, number, value)

    def shared_generator(self, seed: int, purpose: str) -> np.random.Generator:
        """A generator from which all members draw the same numbers. seed: the run's."""
        view = f"view {self.network.identity.view}"
        return np.random.default_rng(derive(seed, view, self.number, purpose))

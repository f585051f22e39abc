"""How a peer comes by the means and deviations of `standardize`: below all protocols, before anything else in round 0.

The federation's are weighted means round the ring, of two vectors: sums over all training samples, of which no peer
tells its own. Who is taken in later, with nothing but its data, is given the result.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from torch import Tensor

from peer.learning.data.column_passes import first_pass, second_pass, standard_of
from peer.learning.data.standard import Standard
from peer.network.wire.manifest import Manifest, Payload
from peer.runtime.local_peer import LocalPeer
from peer.runtime.manifest import on_entry
from peer.spec.federation import MEANS, VARIANCES
from peer.views.view import View

Whose = Literal["own", "federation"]
ENTRY = on_entry("column means and deviations")


def with_standard(declared: Manifest, columns: int, view: View) -> Manifest:
    """With what the federation's values are made of, and what those are given who are taken in: as it is."""
    vector = Payload(name=MEANS, size=2 * columns, doubles=1, first_round=0, last_round=0)
    more = [vector, replace(vector, name=VARIANCES)]
    if view.entrants:
        more.append(replace(vector, name=ENTRY, doubles=0, first_round=view.first, last_round=view.first))
    return Manifest((*declared.payloads, *more), declared.data)


async def settle(peer: LocalPeer, whose: Whose) -> None:
    """In round 0, at every member."""
    together, samples = whose == "federation", peer.data
    first = await _in_thread(peer, first_pass, samples)
    if together:
        await peer.mean(MEANS, first, len(samples))
    second = await _in_thread(peer, second_pass, samples, first)
    if together:
        await peer.mean(VARIANCES, second, len(samples))
    peer.standardise(standard_of(first, second))


async def take_in(peer: LocalPeer, whose: Whose, entrants: Mapping[str, int]) -> None:
    """In the first round of a view; who brings private state brings these values, too."""
    new = [id for id, stands in entrants.items() if stands == -1]
    if whose == "own":
        if peer.id in new:
            await settle(peer, whose)
        return
    if peer.id in new:
        peer.standardise(Standard.of_vector((await peer.take_over(ENTRY)).vector))
    if peer.right in new and peer.standard:
        await peer.hand_over(ENTRY, peer.standard.vector)


async def _in_thread(peer: LocalPeer, function: object, *arguments: object) -> Tensor:
    vector: Tensor = await asyncio.get_running_loop().run_in_executor(peer.executor, function, *arguments)  # type: ignore[arg-type]
    return vector

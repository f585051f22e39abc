"""A random number in which every peer has a part and which nobody can choose: all commit themselves first (Blum 1983).

Whoever hears the others' parts before it tells its own could choose it. So each tells SHA-256 of its part, and the part
itself once it has everybody's: it has as much entropy as the digest has bytes, so that the digest tells nothing of it.
"""

import hashlib

import torch
from torch import Tensor

from peer.errors import FailedError
from peer.protocols.base import Peer, Record
from peer.protocols.blocks.noise import SECRET, as_secret

COMMITMENT, PART = Record("commitment", hashlib.sha256().digest_size), Record("sampling", SECRET)


async def common_secret(peer: Peer, part: bytes) -> Tensor:
    """The digest of everybody's part, uint8 (32,), the same at all peers; `part` has 32 secret bytes.

    FailedError names who tells no bytes, or another part than it has committed itself to.
    """
    commitments = await _told(peer, COMMITMENT, commitment(part))
    parts = await _told(peer, PART, part)
    if liars := [id for id in peer.members if commitment(parts[id]) != commitments[id]]:
        raise FailedError(
            f"{', '.join(liars)} told another part of the {PART.name} than committed to; see what runs there, and what "
            "relays it"
        )
    return as_secret(b"".join(parts.values()))


def commitment(part: bytes) -> bytes:
    """What is told of a part before it is told."""
    return hashlib.sha256(part).digest()


async def _told(peer: Peer, record: Record, content: bytes) -> dict[str, bytes]:
    told = await peer.gather(record.name, torch.tensor([*content], dtype=torch.float64))
    for id, values in told.items():
        if not bool(((values >= 0) & (values < 256) & (values == values.round())).all()):
            raise FailedError(f"{id} sent what are no bytes as its {record.name}; see what it runs")
    return {id: bytes(values.int().tolist()) for id, values in told.items()}

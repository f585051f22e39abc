"""Secret random numbers, a common one that no peer can choose, and what noise is worth.

A stream is SHAKE-256 (FIPS 202) of a peer's own secret and of what the stream is for: the same again after a crash, and
unlike numpy's generators safe against an attacker that knows parts of it.

In a common secret every peer has a part and none can choose it: all commit themselves first (Blum 1983). A peer that
received the others' parts before sending its own could choose it. So each sends SHA-256 of its part, and the part
itself once it has all digests: a part has as much entropy as the digest has bytes, so that the digest reveals nothing.

What noise is worth is ε of (ε, δ)-differential privacy, calculated by Google's `dp-accounting`. Neighbouring are two
federations of which one lacks all of one peer's contributions, whose norm is at most the clip norm. A noise multiplier
is the noise's standard deviation divided by that norm.
"""

import hashlib
import secrets
from functools import cache
from math import inf, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.errors import FailedError, optional
from peer.protocols.base import Peer
from peer.protocols.declarations import Record

SECRET_BYTES = 32
"""Bytes of a secret."""
WORD_BYTES = 8
"""Bytes of the stream for one number."""
STEP = 2.0**-53
"""The distance of neighbouring uniform numbers, as fine as float64 below 1."""


def draw_secret() -> Tensor:
    """Draw a secret from the operating system's entropy, uint8 (32,); only in `peer.once`, as each call differs."""
    return as_secret(secrets.token_bytes(SECRET_BYTES))


def as_secret(content: bytes) -> Tensor:
    """The secret that a digest of `content` is, uint8 (32,)."""
    return torch.tensor([*hashlib.sha256(content).digest()], dtype=torch.uint8)


def stream(secret: Tensor, purpose: str, round: int, size: int) -> bytes:
    """`size` bytes for one purpose in one round; they tell nothing of the secret or of its other streams."""
    key = hashlib.shake_256(bytes(secret.tolist()) + round.to_bytes(8, "little") + purpose.encode())
    return key.digest(size)


def uniform(secret: Tensor, purpose: str, round: int, count: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), multiples of 2⁻⁵³, float64 (count,)."""
    words = np.frombuffer(stream(secret, purpose, round, WORD_BYTES * count), dtype="<u8")
    return (words >> 11).astype(np.float64) * STEP


def standard_normal(secret: Tensor, purpose: str, round: int, count: int) -> Tensor:
    """Draws of N(0, 1), float32 (count,), on the CPU, by Box and Muller's transform (1958) in float64."""
    half = (count + 1) // 2
    numbers = uniform(secret, purpose, round, 2 * half)
    radius, angle = np.sqrt(-2 * np.log(numbers[:half] + STEP)), 2 * np.pi * numbers[half:]
    drawn = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return torch.from_numpy(drawn.astype(np.float32))


COMMITMENT, PART = Record("commitment", hashlib.sha256().digest_size), Record("sampling", SECRET_BYTES)


async def common_secret(peer: Peer, part: bytes) -> Tensor:
    """Return the digest of all parts, uint8 (32,), the same at all peers; `part` has 32 secret bytes.

    The FailedError names peers that send anything but bytes, or another part than they committed themselves to.
    """
    commitments = await _gathered_bytes(peer, COMMITMENT, commitment(part))
    parts = await _gathered_bytes(peer, PART, part)
    if liars := [id for id in peer.members if commitment(parts[id]) != commitments[id]]:
        raise FailedError(
            f"{', '.join(liars)} told another part of the {PART.name} than committed to; see what runs there, and what "
            "relays it"
        )
    return as_secret(b"".join(parts.values()))


def commitment(part: bytes) -> bytes:
    """Return what is sent of a part before the part itself."""
    return hashlib.sha256(part).digest()


async def _gathered_bytes(peer: Peer, record: Record, content: bytes) -> dict[str, bytes]:
    told = await peer.gather(record.name, torch.tensor([*content], dtype=torch.float64))
    for id, values in told.items():
        if not bool(((values >= 0) & (values < 256) & (values == values.round())).all()):
            raise FailedError(f"{id} sent what are no bytes as its {record.name}; see what it runs")
    return {id: bytes(values.int().tolist()) for id, values in told.items()}


RENYI_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 384, 512, 1024)
"""Orders of the Rényi divergences that are tried. Any set gives a bound; some fractional orders do not converge."""


def dp_accounting() -> Any:
    """The imported accountant; InputError when it is not installed."""
    return optional("dp_accounting", "calculating ε", "dp-accounting", "privacy")


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """ε of one release with Gaussian noise, exactly (Balle and Wang 2018, Theorem 8); infinite without noise.

    Releases with multipliers z_k are together worth one with z = 1/√(Σ 1/z_k²).
    """
    return float(dp_accounting().get_epsilon_gaussian(noise_multiplier, delta))


@cache
def sampled_epsilon(rate: float, noise_multiplier: float, releases: int, delta: float) -> float:
    """ε of that many releases with Gaussian noise, each of a new Poisson sample that stays hidden.

    The smaller of two bounds: Rényi's with amplification by sampling (Mironov, Talwar and Zhang 2019), and the exact
    one without it, which is the better where samples are large or noise is small.
    """
    if noise_multiplier == 0:
        return inf
    known = gaussian_epsilon(noise_multiplier / sqrt(releases), delta)
    accounting = dp_accounting()
    release = accounting.PoissonSampledDpEvent(rate, accounting.GaussianDpEvent(noise_multiplier))
    accountant = accounting.rdp.RdpAccountant(RENYI_ORDERS).compose(release, releases)
    return min(known, float(accountant.get_epsilon(delta)))

"""A model evaluated on inputs that stay encrypted: CKKS, by TenSEAL, for one hidden layer with the square in it.

A slot of a ciphertext is a sample, a ciphertext an input value of all samples. The peer that evaluates has a context
without a secret key. What a neighbour has sent TenSEAL reads in processes of their own.
"""

import re
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from peer.errors import InputError
from peer.learning.encryption import ckks
from peer.learning.encryption.worker import shared_worker

SLOTS = 4096
"""Samples in a ciphertext."""
MAX_LOGIT = 256.0
"""Half of the 512 for which the last prime has room, as the peer that evaluates does not see the inputs."""
FRESH_BYTES, ANSWER_BYTES, CONTEXT_BYTES, KEY_BYTES = 400_000, 120_000, 2_000_000, 400_000
"""Most bytes of an encrypted input value, of a logit, of a context without and of one with a secret key."""
FLOAT64 = 8
VECTOR = re.compile(rb"\n(\x01[\x00-\x7f]|\x02[\x80-\xff][\x00-\x7f])\x12([\x80-\xff]{0,3}[\x00-\x7f])")
"""How TenSEAL's protobuf of a vector begins: one count of samples, then one ciphertext's length. Its scale follows."""


class SquareMLP(NamedTuple):
    """logits = V(Wx + a)² + b: W (hidden, inputs), a (hidden), V (classes, hidden), b (classes)."""

    hidden: Tensor
    hidden_bias: Tensor
    head: Tensor
    head_bias: Tensor

    def logits(self, x: Tensor) -> Tensor:
        """(n, *shape) → (n, classes)."""
        return (x.flatten(1) @ self.hidden.T + self.hidden_bias).square() @ self.head.T + self.head_bias


class Encrypted(NamedTuple):
    """A key pair and what was encrypted with it."""

    key: bytes
    """Context with the secret key: it stays."""
    context: bytes
    """Context with the keys that an evaluation needs and no secret key: it goes with the inputs."""
    inputs: list[bytes]


def check_fits(peer: str, samples: int) -> None:
    """InputError where a peer has too many for a ciphertext."""
    if samples > SLOTS:
        raise InputError(
            f"the {samples:,} samples of {peer} do not fit into a ciphertext, which holds {SLOTS:,}; give the peers "
            "fewer (`data.limit`) or take `predictions: model`"
        )


def encrypt(x: Tensor) -> Encrypted:
    """Inputs (n, *shape) under a new key: another one, and other ciphertexts, at each call."""
    check_fits("this peer", len(x))
    return Encrypted(*ckks.encrypt(x.flatten(1).T.double().cpu().tolist()))


def evaluate(model: SquareMLP, context: bytes, inputs: Sequence[bytes]) -> list[bytes]:
    """The encrypted logits, a ciphertext for each class; ValueError where context and inputs are none of these."""
    classes, (hidden, width) = len(model.head_bias), model.hidden.shape
    if not context.startswith(ckks.parameters()):
        raise ValueError("a context with other parameters")
    if len(inputs) != width:
        raise ValueError(f"{len(inputs)} encrypted inputs for a model of {width}")
    _check_vectors(inputs)
    weights = [one.double().numpy().tobytes() for one in model]
    request = [struct.pack("<3Q", width, hidden, classes), *weights, context, *inputs]
    return shared_worker("evaluate").ask(request, classes, ANSWER_BYTES)


def decrypt(key: bytes, answer: Sequence[bytes], samples: int) -> Tensor:
    """Logits float32 (samples, classes); ValueError where the answer is none to so many samples."""
    _check_vectors(answer)
    columns = shared_worker("decrypt").ask([key, *answer], len(answer), SLOTS * FLOAT64)
    if any(len(column) != samples * FLOAT64 for column in columns):
        raise ValueError(f"an answer to other than {samples} samples")
    logits = torch.frombuffer(bytearray().join(columns), dtype=torch.float64).view(len(columns), samples)
    logits = logits.T.float().contiguous()
    if not bool(torch.isfinite(logits).all()):
        raise ValueError("an answer of numbers that are not finite")
    return logits


def _check_vectors(vectors: Sequence[bytes]) -> None:
    """ValueError unless each is one ciphertext of at most SLOTS samples.

    TenSEAL reads beyond its memory where there is none, and of many a few bytes unfold to megabytes each.
    """
    for content in vectors:
        begun = VECTOR.match(content)
        if not begun or not 0 < _varint(begun[1][1:]) <= SLOTS:
            raise ValueError("not a single ciphertext")
        rest = content[begun.end() + _varint(begun[2]) :]
        if len(rest) != 9 or rest[:1] != b"\x19":
            raise ValueError("not a single ciphertext")


def _varint(content: bytes) -> int:
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(content))

"""What other peers' models predict on one's own samples, and how it is got.

Either the others' models come here, or the inputs go there, encrypted by their owner: then neither data nor models
leave in the clear."""

import struct
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from math import prod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from peer.errors import DivergedError, FailedError, InputError
from peer.learning.data.samples import InMemory
from peer.learning.encryption import ckks
from peer.learning.encryption.square_mlp import (
    ANSWER_BYTES,
    CONTEXT_BYTES,
    FRESH_BYTES,
    KEY_BYTES,
    MAX_LOGIT,
    Encrypted,
    SquareMLP,
    check_fits,
    decrypt,
    encrypt,
    evaluate,
)
from peer.learning.training.evaluation import EVALUATION_BATCH
from peer.protocols.base import Init, Peer
from peer.protocols.blocks.distillation import Distillation, Predictions
from peer.protocols.declarations import Share
from peer.topology import Graph

CIPHERTEXTS_PER_MESSAGE = 16
"""Ciphertexts in a message."""
LENGTH_BYTES = 8
"""Bytes before each of them that say how long it is."""
ENCRYPTED_SHARES = (
    Share("context", size=CONTEXT_BYTES, bytes=True, rounds=range(1, 2)),
    Share("inputs", size=CIPHERTEXTS_PER_MESSAGE * (FRESH_BYTES + LENGTH_BYTES), bytes=True, rounds=range(1, 2)),
    Share("answers", size=CIPHERTEXTS_PER_MESSAGE * (ANSWER_BYTES + LENGTH_BYTES), bytes=True),
)
ENCRYPTED_STATE = ("key", "context/", "inputs/")
"""Names in `peer.state`: the own secret key; the context and encrypted inputs of all others."""


def check_encryptable(peer: Peer) -> None:
    """InputError where TenSEAL is missing or the model is no SquareMLP."""
    ckks.library()
    if not isinstance(peer.data, InMemory):
        raise InputError(
            "`predictions: encrypted` encrypts all inputs together, so they must be in memory; leave out `stream` and "
            "`test_transforms`, or take `predictions: model`"
        )
    square_mlp(peer)


async def encrypted_predictions(peer: Peer, to: Collection[str]) -> Predictions:
    """Answer the peers in `to`, and return the answers to this one, in the spec's order."""
    if peer.round == 1:
        await introduce(peer)
    answers = {
        k: list(_ciphertexts(await peer.once(partial(_encrypted_answer, peer, k)))) for k in peer.members if k in to
    }
    heard: dict[str, list[bytes]] = {}
    for at in range(0, len(peer.proportions), CIPHERTEXTS_PER_MESSAGE):
        now = {k: _joined(ciphertexts[at : at + CIPHERTEXTS_PER_MESSAGE]) for k, ciphertexts in answers.items()}
        for k, one in (await peer.exchange("answers", to=now)).items():
            heard.setdefault(k, []).extend(_ciphertexts_from(k, one.vector))
    return {k: await peer.compute(_decrypted, peer, k, heard[k]) for k in peer.members if k in heard}


async def introduce(peer: Peer) -> None:
    """Exchange contexts and encrypted inputs, which every peer keeps of all others."""
    key, context, *inputs = _ciphertexts(await peer.once(partial(_encrypted, peer)))
    peer.state["key"], everyone = _tensor(key), others(peer)
    for k, one in (await peer.exchange("context", to=dict.fromkeys(everyone, _tensor(context)), of=everyone)).items():
        peer.state[f"context/{k}"] = one.vector
    theirs: dict[str, list[bytes]] = {}
    for at in range(0, len(inputs), CIPHERTEXTS_PER_MESSAGE):
        now = dict.fromkeys(everyone, _joined(inputs[at : at + CIPHERTEXTS_PER_MESSAGE]))
        for k, one in (await peer.exchange("inputs", to=now, of=everyone)).items():
            theirs.setdefault(k, []).extend(_ciphertexts_from(k, one.vector))
    for k, ciphertexts in theirs.items():
        peer.state[f"inputs/{k}"] = _joined(ciphertexts)


def square_mlp(peer: Peer) -> SquareMLP:
    """The peer's model as a polynomial; InputError if it is none."""
    weights = [entry.view(peer.model).detach().cpu() for entry in peer.layout]
    inputs, hidden = prod(peer.data.shape), len(weights[0])
    if [tuple(one.shape) for one in weights[:3]] == [(hidden, inputs), (hidden,), (len(peer.proportions), hidden)]:
        found = SquareMLP(*weights) if len(weights) == 4 else None
        few = next(peer.data.in_order(32)).inputs
        with torch.no_grad():
            if found and torch.allclose(peer.logits(peer.model, few).cpu(), found.logits(few.cpu()), 1e-3, 1e-3):
                return found
    raise InputError(
        "`predictions: encrypted` evaluates one hidden layer with the square as its activation and nothing else; take "
        "`model: {name: mlp-square}`, or `predictions: model`"
    )


def _encrypted(peer: Peer) -> Tensor:
    if peer.rehearsal:
        count = prod(peer.data.shape)
        made = Encrypted(bytes(KEY_BYTES), bytes(CONTEXT_BYTES), [bytes(FRESH_BYTES)] * count)
    else:
        made = encrypt(_inputs(peer))
    return _joined([made.key, made.context, *made.inputs])


def _inputs(peer: Peer) -> Tensor:
    """All of this peer's, (n, *shape): they are encrypted together."""
    return torch.cat([batch.inputs for batch in peer.data.in_order(EVALUATION_BATCH)])


def _encrypted_answer(peer: Peer, k: str) -> Tensor:
    """This peer's encrypted logits on k's inputs."""
    if peer.rehearsal:
        return _joined([bytes(ANSWER_BYTES)] * len(peer.proportions))
    model = square_mlp(peer)
    largest = float(model.logits(_inputs(peer).cpu()).abs().max())
    if not largest <= MAX_LOGIT:
        raise DivergedError(
            f"{peer.id}: its logits reach {largest:.3g} in round {peer.round}, and encrypted ones hold {MAX_LOGIT:g}; "
            "lower `lr` or `lam`"
        )
    try:
        answer = evaluate(model, _bytes(peer.state[f"context/{k}"]), [*_ciphertexts(peer.state[f"inputs/{k}"])])
    except ValueError as error:
        raise FailedError(f"{k} sent inputs that cannot be evaluated ({error}); see what it runs") from None
    return _joined(answer)


def _decrypted(peer: Peer, k: str, answer: Sequence[bytes]) -> Tensor:
    if peer.rehearsal:
        return torch.zeros(len(peer.data), len(peer.proportions), device=peer.model.device)
    try:
        if len(answer) != len(peer.proportions):
            raise ValueError(f"{len(answer)} ciphertexts for {len(peer.proportions)} classes")
        logits = decrypt(_bytes(peer.state["key"]), answer, len(peer.data))
    except ValueError as error:
        raise FailedError(f"{k} sent an answer that cannot be decrypted ({error}); see what it runs") from None
    return logits.to(peer.model.device)


def _joined(parts: Iterable[bytes]) -> Tensor:
    return _tensor(b"".join(struct.pack("<Q", len(part)) + part for part in parts))


def _ciphertexts_from(k: str, joined: Tensor) -> list[bytes]:
    """The ciphertexts in a message from k; FailedError where it is none."""
    found = list(islice(_ciphertexts(joined, k), CIPHERTEXTS_PER_MESSAGE + 1))
    if not 0 < len(found) <= CIPHERTEXTS_PER_MESSAGE:
        raise FailedError(
            f"{k} sent a message that is not of 1 to {CIPHERTEXTS_PER_MESSAGE} ciphertexts; see what it runs"
        )
    return found


def _ciphertexts(joined: Tensor, sender: str = "a neighbour") -> Iterator[bytes]:
    """FailedError where the lengths are not those of what is there."""
    left = joined.cpu().numpy().data
    while left:
        begun, left = left[:LENGTH_BYTES], left[LENGTH_BYTES:]
        length = int.from_bytes(begun, "little")
        if len(begun) < LENGTH_BYTES or length > len(left):
            raise FailedError(f"{sender} sent ciphertexts of impossible lengths; see what it runs")
        yield bytes(left[:length])
        left = left[length:]


def _tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


class SharedPredictions(Distillation):
    """Peers answer one another along a complete graph."""

    predictions: Literal["model", "encrypted"] = "model"
    """How n gets k's predictions: by k's model, or from k, on encrypted inputs."""

    needs_classes: ClassVar[bool] = True
    unchanging: ClassVar[tuple[str, ...]] = ENCRYPTED_STATE
    graph: ClassVar[Graph] = "complete"

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return (Share("model", whole=True),) if self.predictions == "model" else ENCRYPTED_SHARES

    def why_members_are_fixed(self) -> str | None:
        return "keys and encrypted inputs leave once, in round 1" if self.predictions == "encrypted" else None

    def why_data_are_fixed(self) -> str | None:
        return "the encrypted inputs leave once, in round 1" if self.predictions == "encrypted" else None

    def check_samples(self, peer: str, samples: int) -> None:
        if self.predictions == "encrypted":
            check_fits(peer, samples)

    def why_inputs_are_fixed(self) -> str | None:
        return "the others have answered to the samples as they are"

    async def start(self, peer: Peer, init: Init) -> None:
        if self.predictions == "encrypted":
            check_encryptable(peer)

    async def predictions_of(self, peer: Peer, to: Collection[str]) -> Predictions:
        """Answer the peers in `to`, and return the answers to this one, in the spec's order.

        An answer that is not finite is left out: even with weight 0 it would end this peer.
        """
        found = await self._answers(peer, to)
        return {k: z for k, z in found.items() if bool(torch.isfinite(z).all())}

    async def _answers(self, peer: Peer, to: Collection[str]) -> Predictions:
        if self.predictions == "encrypted":
            return await encrypted_predictions(peer, to)
        received = await peer.exchange("model", to=to)
        return {k: await peer.compute(_answer, peer, received[k].vector) for k in peer.members if k in received}


def others(peer: Peer) -> list[str]:
    """All peers but this one, in the spec's order."""
    return [member for member in peer.members if member != peer.id]


def _answer(peer: Peer, vector: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([peer.logits(vector, batch.inputs) for batch in peer.data.in_order(EVALUATION_BATCH)])

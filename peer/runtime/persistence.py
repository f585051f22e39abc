"""What a peer must remember to go on after a crash, out of the peer and back into it."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from peer.errors import FailedError, InputError
from peer.learning.data.standard import Standard
from peer.learning.transfer import copies
from peer.plugins import in_words
from peer.protocols.state import State
from peer.runtime.communicating import Ring, Seconds
from peer.runtime.journal import tensor_digest
from peer.runtime.local_peer import LocalPeer
from peer.telemetry.trace import copy


class Persistence:
    """One peer's state, as a checkpoint holds it."""

    def __init__(self, peer: LocalPeer) -> None:
        self._peer, self._protocol = peer, peer.setup.spec.protocol
        self._unchanging: dict[str, str] = {}

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything to go on from: tensors on the CPU, copied as the next round changes them, and plain JSON."""
        changing = {name: tensor for name, tensor in self._peer.state.items() if not self._protocol.keeps(name)}
        tensors = copies(
            {
                "model": self._peer.model,
                **{f"counter/{name}": counter for name, counter in self._peer.trained.counters.items()},
                **{f"protocol/{name}": tensor for name, tensor in changing.items()},
                **{f"wire/{name}": tensor for name, tensor in self._peer.encoding.state.items()},
            }
        )
        tensors |= {f"optimiser/{name}": tensor for name, tensor in self._peer.trainer.state().items()}
        if standard := self._peer.standard:
            tensors["standard"] = standard.vector
        tensors |= {f"behaviour/{name}": tensor for name, tensor in self._peer.misbehaviour.state_dict().items()}
        return tensors, {
            "ring": asdict(self._peer.ring_order),
            "seconds": asdict(self._peer.seconds),
            "loss": self._peer.loss,
            "frozen": self._peer.trained.frozen_sha256,
        }

    async def unchanging(self) -> tuple[dict[str, str], dict[str, Tensor]]:
        """What the protocol keeps unchanged: checksums by name, and, by checksum, copies of what is new.

        InputError when it was changed or is gone: what is on disk already would be something else.
        """
        kept = {f"protocol/{name}": tensor for name, tensor in self._peer.state.items() if self._protocol.keeps(name)}
        if not kept and not self._unchanging:
            return {}, {}
        before, self._unchanging = self._unchanging, await asyncio.to_thread(_digests, kept)
        for name, digest in before.items():
            if self._unchanging.get(name) != digest:
                raise InputError(
                    f"`{self._protocol.name}` declares peer.state[{name.removeprefix('protocol/')!r}] as unchanging "
                    f"and changed it in round {self._peer.round}; leave it as it is or take it out of `unchanging`"
                )
        new = {digest: copy(kept[name]) for name, digest in self._unchanging.items() if name not in before}
        return dict(self._unchanging), new

    def load_state_dict(
        self, round: int, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], unchanging: Mapping[str, str]
    ) -> None:
        """Go on after `round` from what `state_dict` gave then; FailedError when it gave something else.

        `tensors` are with those that `unchanging`, by their checksums, says are on disk already.
        """
        self._check_frozen(round, facts.get("frozen", ""))
        try:
            self._restore(tensors, facts)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise FailedError(
                f"the checkpoint of round {round} is not of this model and protocol ({in_words(error)}); put a copy of "
                "this peer's files in its place, or begin the federation again (`dfl-launch run --fresh`)"
            ) from error
        self._peer.round, self._unchanging = round, dict(unchanging)

    def _check_frozen(self, round: int, before: str) -> None:
        """What is frozen stands in no checkpoint, but in its own file or code."""
        if (now := self._peer.trained.frozen_sha256) != before:
            raise FailedError(
                f"the frozen weights are others than in round {round} (sha256:{now or 'none'}, and then "
                f"sha256:{before or 'none'}); give the model the weights that it had, or begin the federation again "
                "(`dfl-launch run --fresh`)"
            )

    def _restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self._peer.model.copy_(tensors["model"])
        for name, counter in self._peer.trained.counters.items():
            counter.copy_(tensors[f"counter/{name}"])
        self._peer.trainer.load_state(_under("optimiser/", tensors))
        kept = _under("protocol/", tensors)
        self._peer.state = State({name: tensor.to(self._peer.trained.device) for name, tensor in kept.items()})
        self._peer.encoding.state = _under("wire/", tensors)
        self._peer.misbehaviour.load_state_dict(_under("behaviour/", tensors))
        if "standard" in tensors:
            self._peer.standardise(Standard.of_vector(tensors["standard"]))
        self._peer.ring_order = Ring(**{**facts["ring"], "order": tuple(facts["ring"]["order"])})
        self._peer.seconds = Seconds(**facts["seconds"])
        self._peer.loss = facts["loss"]


def _digests(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: tensor_digest(tensor.detach().cpu().contiguous()) for name, tensor in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

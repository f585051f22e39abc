"""How vectors are encoded when they leave a peer and decoded when they arrive, by the spec's `wire`.

An encoding stands between a protocol's calls and the collectives, and no protocol knows about it. What it keeps of
earlier messages is part of the peer's checkpoint, so that a replayed round sends the same bytes again.

- `Encoding`, float32: vectors travel as they are.
- `Bfloat16Encoding`, `wire: bfloat16`: half the bytes; the rounding error is added to what is sent next.
- `TopKEncoding`, `wire: top-k`: some of a vector's values, those that matter most now.
- `CodecEncoding`, `wire: {kind: codec, ...}`: a user's codec; what it loses is added to what is sent next.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from peer.errors import InputError
from peer.network.collectives import Collective, Rounding
from peer.network.wire.codec import CodedBlock
from peer.network.wire.manifest import PayloadSpec, TopKBlock, pack_top_k, unpack_blocks, vector_bytes
from peer.plugins import user_code_errors
from peer.protocols.blocks.vectors import places_of_largest
from peer.protocols.declarations import Share
from peer.spec.blocks import Coded, TopK, Wire

Placed = Callable[[Tensor], Tensor]
"""Moves a tensor from the CPU to the model's device."""


class Encoding:
    """float32: vectors travel as they are."""

    dtype = torch.float32
    """What a value becomes that travels as a number."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        """sizes: how many values `extractor`, `head` and `model` have."""
        self._sizes = sizes
        self.state: dict[str, Tensor] = {}
        """What is kept between messages: float32 vectors on the CPU, by collective and share."""

    def payload(self, share: Share, payload: PayloadSpec) -> PayloadSpec:
        """The manifest's entry for a vector as it travels."""
        return payload

    def length(self, share: Share, values: int) -> int:
        """The bytes that a vector of so many values takes on the wire."""
        return values if share.bytes else self.dtype.itemsize * values

    def check(self, collective: Collective, share: Share, each_its_own: bool = False) -> None:
        """Raise InputError if a vector cannot travel in this encoding in that collective."""

    def rounding(self, share: Share, vector: Tensor) -> Rounding | None:
        """How the parts of a mean are rounded; None: they are not."""
        return None

    def encode(self, collective: Collective, share: Share, vector: Tensor, each_its_own: bool = False) -> Tensor:
        """Encode a finite vector on the CPU; OverflowError if the result is not finite.

        each_its_own: the vector is for one neighbour only, and nothing is kept for the next message.
        """
        return vector

    def decode(self, share: Share, arrived: Tensor, own: Callable[[], Tensor], placed: Placed) -> Tensor:
        """Decode what arrived, to the model's device; `own` returns this peer's present vector of that name."""
        return placed(arrived)


class Bfloat16Encoding(Encoding):
    """Rounds each value to bfloat16; the rounding error is added to what is sent next."""

    dtype = torch.bfloat16

    def payload(self, share: Share, payload: PayloadSpec) -> PayloadSpec:
        if share.bytes:
            return payload
        tensors = tuple((name, shape, "bfloat16") for name, shape, _ in payload.tensors)
        return replace(payload, kind="bfloat16", tensors=tensors)

    def rounding(self, share: Share, vector: Tensor) -> Rounding | None:
        return self._rounding("weighted_mean", share, vector)

    def _rounding(self, collective: Collective, share: Share, vector: Tensor) -> Rounding:
        key = f"{collective}/{share.vector}"
        if key not in self.state or self.state[key].shape != vector.shape:
            self.state[key] = torch.zeros_like(vector, device="cpu")
        return Rounding(self.state[key])

    def encode(self, collective: Collective, share: Share, vector: Tensor, each_its_own: bool = False) -> Tensor:
        if share.bytes:
            return vector
        lost = Rounding(torch.zeros_like(vector)) if each_its_own else self._rounding(collective, share, vector)
        rounded = lost.round(vector)
        if not bool(torch.isfinite(rounded.sum())):
            raise OverflowError("beyond bfloat16")
        return rounded

    def decode(self, share: Share, arrived: Tensor, own: Callable[[], Tensor], placed: Placed) -> Tensor:
        return placed(arrived) if share.bytes else placed(arrived).float()


AnyBlock = TypeVar("AnyBlock", TopKBlock, CodedBlock)


class BlockEncoding(Encoding, Generic[AnyBlock]):
    """Encodes extractor and head each as a block of a length known beforehand; other vectors travel as they are."""

    def __init__(self, sizes: Mapping[str, int], wire: TopK | Coded, block: Callable[[int], AnyBlock]) -> None:
        """block: the form of so many values."""
        super().__init__(sizes)
        self._wire = wire
        self._block: Callable[[int], AnyBlock] = block

    def _blocks(self, share: Share) -> dict[str, AnyBlock]:
        halves = [share.part] if share.part in ("extractor", "head") else ["extractor", "head"]
        return {str(half): self._block(self._sizes[str(half)]) for half in halves}

    def payload(self, share: Share, payload: PayloadSpec) -> PayloadSpec:
        if not self._wire.shortens(share):
            return payload
        blocks = self._blocks(share)
        length = sum(block.length for block in blocks.values())
        head = (length - blocks["head"].length, length) if "head" in blocks else (0, 0)
        return replace(payload, kind=self._wire.kind, size=length, head=head, blocks=tuple(blocks.values()))

    def length(self, share: Share, values: int) -> int:
        if not self._wire.shortens(share):
            return super().length(share, values)
        return sum(block.length for block in self._blocks(share).values())


class TopKEncoding(BlockEncoding[TopKBlock]):
    """Sends, for each half of the model, the values that differ most from what was sent last, and their places.

    For all other values a receiver takes its own present ones, or 0 in an update. A protocol's own vectors travel as
    they are unless they are updates.
    """

    def __init__(self, sizes: Mapping[str, int], wire: TopK, initial: Tensor | None) -> None:
        """initial: the model that all peers know at the start, (p,); None if there is none."""
        super().__init__(sizes, wire, lambda size: TopKBlock(size, wire.kept(size)))
        self._initial = initial

    def check(self, collective: Collective, share: Share, each_its_own: bool = False) -> None:
        if share.bytes or (collective != "weighted_mean" and not self._wire.shortens(share)):
            return
        name, way_out = f"`{share.vector}`", "write `wire: bfloat16`"
        match collective:
            case "weighted_mean":
                raise InputError(f"`wire: top-k` sends some values, and the mean of {name} needs all; {way_out}")
            case "token":
                raise InputError(f"`wire: top-k` sends some values, and {name} is handed on as a whole; {way_out}")
            case "all_gather" if not share.update:
                raise InputError(
                    f"`wire: top-k` leaves each peer its own values where none came: after `all_gather` of {name} "
                    f"no two would have the same; {way_out}"
                )
            case "exchange" if share.whole:
                raise InputError(f"`wire: top-k` sends some values, and {name} is of use only as a whole; {way_out}")
            case "exchange" if each_its_own:
                raise InputError(
                    f"`wire: top-k` keeps for the next message what it does not send, and {name} is another vector for "
                    f"each neighbour; {way_out}"
                )

    def encode(self, collective: Collective, share: Share, vector: Tensor, each_its_own: bool = False) -> Tensor:
        if not self._wire.shortens(share):
            return vector
        key = f"{collective}/{share.vector}"
        kept = self.state.get(key)
        if kept is None:
            kept = self.state[key] = torch.zeros_like(vector) if share.update else self._known(share, vector)
        waiting = kept.add_(vector) if share.update else vector - kept
        if not bool(torch.isfinite(waiting.sum())):
            raise OverflowError("beyond float32")
        content, start = bytearray(), 0
        for block in self._blocks(share).values():
            places = start + places_of_largest(waiting[start : start + block.size], block.kept)
            values = (waiting if share.update else vector)[places]
            content += pack_top_k(block, (places - start).numpy(), values.numpy())
            kept[places] = 0.0 if share.update else values
            start += block.size
        return torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)

    def _known(self, share: Share, vector: Tensor) -> Tensor:
        """The values of a part that the others know before anything is sent."""
        if self._initial is None:
            return torch.zeros_like(vector)
        end = self._sizes["model"] if share.part == "head" else len(vector)
        return self._initial[end - len(vector) : end].clone()

    def decode(self, share: Share, arrived: Tensor, own: Callable[[], Tensor], placed: Placed) -> Tensor:
        if not self._wire.shortens(share):
            return placed(arrived)
        blocks = self._blocks(share).values()
        size = sum(block.size for block in blocks)
        vector = placed(torch.zeros(size)) if share.update else placed(own().detach()).clone()
        start = 0
        for block, (places, values) in zip(blocks, unpack_blocks([*blocks], vector_bytes(arrived)), strict=True):
            vector[placed(start + torch.from_numpy(places))] = placed(torch.from_numpy(values.copy()))
            start += block.size
        return vector


class CodecEncoding(BlockEncoding[CodedBlock]):
    """The bytes of a user's codec; what a message loses is added to what is sent next."""

    def __init__(self, sizes: Mapping[str, int], wire: Coded) -> None:
        super().__init__(sizes, wire, lambda size: CodedBlock(size, wire.codec))
        self._name = wire.name

    def _blocks(self, share: Share) -> dict[str, CodedBlock]:
        return {half: block for half, block in super()._blocks(share).items() if block.size}

    def check(self, collective: Collective, share: Share, each_its_own: bool = False) -> None:
        if collective == "weighted_mean":
            raise InputError(
                f"`wire: codec` encodes whole vectors, and the mean of `{share.vector}` is taken part by part on its "
                "way round the ring; write `wire: bfloat16`"
            )

    def encode(self, collective: Collective, share: Share, vector: Tensor, each_its_own: bool = False) -> Tensor:
        if not self._wire.shortens(share):
            return vector
        nothing = torch.zeros_like(vector)
        lost = nothing if each_its_own else self.state.setdefault(f"{collective}/{share.vector}", nothing)
        lost += vector
        if not bool(torch.isfinite(lost.sum())):
            raise OverflowError("beyond float32")
        parts, start = [torch.empty(0, dtype=torch.uint8)], 0
        with user_code_errors(self._name):
            for block in self._blocks(share).values():
                values = lost[start : start + block.size]
                parts.append(block.pack(values))
                values -= block.decode(vector_bytes(parts[-1]))
                start += block.size
        return torch.cat(parts)

    def decode(self, share: Share, arrived: Tensor, own: Callable[[], Tensor], placed: Placed) -> Tensor:
        if not self._wire.shortens(share):
            return placed(arrived)
        with user_code_errors(self._name):
            values = unpack_blocks([*self._blocks(share).values()], vector_bytes(arrived))
            return placed(torch.cat([torch.empty(0), *values]))


def new_encoding(wire: Wire, sizes: Mapping[str, int], initial: Tensor | None = None) -> Encoding:
    """The encoding for the start of a run. initial: the model that all peers know, (p,); None if there is none."""
    match wire.kind:
        case "float32":
            return Encoding(sizes)
        case "bfloat16":
            return Bfloat16Encoding(sizes)
        case "top-k":
            return TopKEncoding(sizes, wire, initial if initial is None else initial.detach().cpu().clone())
        case "codec":
            return CodecEncoding(sizes, wire)

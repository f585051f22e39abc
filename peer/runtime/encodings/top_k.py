"""Some values of a vector, those that matter most now: `wire: top-k`."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from peer.errors import InputError
from peer.network.wire.frames import vector_bytes
from peer.network.wire.manifest import Payload
from peer.network.wire.sparse import Block, pack, unpack
from peer.protocols.blocks.largest import places_of_largest
from peer.protocols.declarations import Share
from peer.runtime.encodings.base import Collective, Encoding, Placed
from peer.spec.wire import TopK


class Largest(Encoding):
    """top-k: of each half of the model the values that differ most from what was told last, and their places.

    A receiver takes its own present values for all others, and 0 in an update. Vectors of a protocol's own that are no
    updates travel as they are.
    """

    def __init__(self, sizes: Mapping[str, int], wire: TopK, initial: Tensor | None) -> None:
        """`initial`: the model that all peers know at the start, None if there is none."""
        super().__init__(sizes)
        self._wire, self._initial = wire, initial

    def _blocks(self, share: Share) -> dict[str, Block]:
        halves = [share.part] if share.part in ("extractor", "head") else ["extractor", "head"]
        sizes = {str(half): self._sizes[str(half)] for half in halves}
        return {half: Block(size, self._wire.kept(size)) for half, size in sizes.items()}

    def payload(self, share: Share, payload: Payload) -> Payload:
        if not self._wire.shortens(share):
            return payload
        blocks = self._blocks(share)
        length = sum(block.length for block in blocks.values())
        head = (length - blocks["head"].length, length) if "head" in blocks else (0, 0)
        return replace(payload, kind="top-k", size=length, head=head, blocks=tuple(blocks.values()))

    def length(self, share: Share, values: int) -> int:
        if not self._wire.shortens(share):
            return super().length(share, values)
        return sum(block.length for block in self._blocks(share).values())

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
            content += pack(block, (places - start).numpy(), values.numpy())
            kept[places] = 0.0 if share.update else values
            start += block.size
        return torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)

    def _known(self, share: Share, vector: Tensor) -> Tensor:
        """What the others know of a part before anything was sent."""
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
        for block, (places, values) in zip(blocks, unpack([*blocks], vector_bytes(arrived)), strict=True):
            vector[placed(start + torch.from_numpy(places))] = placed(torch.from_numpy(values.copy()))
            start += block.size
        return vector

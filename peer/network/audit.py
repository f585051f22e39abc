"""What left this peer and what reached it: by round, neighbour and vector. The proof of privacy is made of it."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from peer.network.manifest import Payload

Line = tuple[str, str]
"""The other peer, and the name of the vector or record."""


@dataclass
class RoundAudit:
    """Bytes of tensors of one round; a message counts when it is written, so a repeat after a cut counts once."""

    edges: dict[str, list[str]] = field(default_factory=dict)
    sent: Counter[Line] = field(default_factory=Counter)
    head: Counter[Line] = field(default_factory=Counter)
    received: Counter[Line] = field(default_factory=Counter)


class Audit:
    """The rounds under way; a finished one is closed and written away, so that memory stays flat."""

    def __init__(self) -> None:
        self._rounds: defaultdict[int, RoundAudit] = defaultdict(RoundAudit)
        self.tensor_bytes = 0
        """Sent in all rounds."""

    def authorise(self, round: int, receivers: Iterable[str], senders: Iterable[str]) -> None:
        """The edges that the protocol declares for a round."""
        edges = self._rounds[round].edges
        for direction, peers in (("send", receivers), ("receive", senders)):
            for peer in peers:
                if direction not in edges.setdefault(peer, []):
                    edges[peer].append(direction)

    def wrote(self, round: int, to: Iterable[str], payload: Payload, offset: int, floats: int) -> None:
        start, end = payload.private
        head = max(0, min(offset + floats, end) - max(offset, start))
        for peer in to:
            self._rounds[round].sent[peer, payload.name] += 4 * floats
            self._rounds[round].head[peer, payload.name] += 4 * head
            self.tensor_bytes += 4 * floats

    def read(self, round: int, sender: str, payload: Payload, count: int) -> None:
        self._rounds[round].received[sender, payload.name] += count

    def close(self, round: int) -> dict[str, Any]:
        """The finished round as one line of audit.jsonl."""
        audit = self._rounds.pop(round, RoundAudit())
        return {
            "round": round,
            "edges": audit.edges,
            "sent": [
                {"to": peer, "vector": name, "bytes": count, "head_bytes": audit.head[peer, name]}
                for (peer, name), count in sorted(audit.sent.items())
            ],
            "received": [
                {"from": peer, "vector": name, "bytes": count} for (peer, name), count in sorted(audit.received.items())
            ],
        }

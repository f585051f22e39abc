"""The audit: what left this peer and what reached it, by round, neighbour and vector. Privacy verdicts rest on it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peer.network.neighbours import Edges
from peer.network.wire.frames import Heading
from peer.network.wire.manifest import PayloadSpec

AuditLine = tuple[str, str, int]
"""The other peer, the name of the vector or record, and how often the ring had been reordered in the round when it was
sent; 0 for what was received."""


@dataclass
class RoundAudit:
    """The bytes of one round. A message counts when it is written, so a repeat after a cut does not count again.

    Scalars are counted apart from tensors: theoretical figures are for tensors alone, and a record has only scalars.
    """

    edges: dict[str, list[str]] = field(default_factory=dict)
    sent: Counter[AuditLine] = field(default_factory=Counter)
    head: Counter[AuditLine] = field(default_factory=Counter)
    sent_scalars: Counter[AuditLine] = field(default_factory=Counter)
    received: Counter[AuditLine] = field(default_factory=Counter)
    received_scalars: Counter[AuditLine] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    noted: dict[str, int] = field(default_factory=dict)
    orders: list[list[str]] = field(default_factory=list)


class Audit:
    """The audit of the rounds under way; a finished round is closed and written to disk, so memory stays flat."""

    def __init__(self, view: int = 0) -> None:
        """view: the number of the view that it covers."""
        self._view = view
        self._rounds: defaultdict[int, RoundAudit] = defaultdict(RoundAudit)
        self.tensor_bytes = 0
        """The bytes of tensors sent in all rounds."""

    def note_edges(self, round: int, receivers: Iterable[str], senders: Iterable[str]) -> None:
        """Note the edges that the protocol declares for a round."""
        edges = self._rounds[round].edges
        for direction, peers in (("send", receivers), ("receive", senders)):
            for peer in peers:
                if direction not in edges.setdefault(peer, []):
                    edges[peer].append(direction)

    def record_sent(self, round: int, to: Iterable[str], payload: PayloadSpec, heading: Heading) -> None:
        """Note a message that is sent to each of `to`."""
        audit = self._rounds[round]
        for peer in to:
            line = peer, payload.name, len(audit.orders)
            audit.sent[line] += heading.length
            audit.head[line] += payload.head_bytes(heading.offset, heading.length)
            audit.sent_scalars[line] += 8 * heading.doubles
            self.tensor_bytes += heading.length

    def reordered(self, round: int, order: Iterable[str]) -> None:
        """Note that all peers have agreed on another order of the ring from now on."""
        self._rounds[round].orders.append([*order])

    def record_scalars(self, round: int, name: str, count: int) -> None:
        """Note that so many scalars leave with a vector or in a record; counted once for all receivers."""
        if count:
            self._rounds[round].told[name] += count

    def noted(self, round: int, values: Mapping[str, object]) -> None:
        """Note the numbers, or lists of them, that user code adds to this peer's events and results, by name."""
        counts = {name: len(value) if isinstance(value, Sequence) else 1 for name, value in values.items()}
        self._rounds[round].noted |= counts

    def record_received(self, round: int, sender: str, payload: PayloadSpec, count: int, scalars: int) -> None:
        """Note that so many bytes of a vector, and of the scalars with it, have arrived."""
        audit = self._rounds[round]
        audit.received[sender, payload.name, 0] += count
        audit.received_scalars[sender, payload.name, 0] += scalars

    def close(self, round: int) -> dict[str, Any]:
        """Close a finished round; return its line of audit.jsonl."""
        audit = self._rounds.pop(round, RoundAudit())
        sent, received = audit.sent_scalars, audit.received_scalars
        return {
            "round": round,
            **({"view": self._view} if self._view else {}),
            "edges": audit.edges,
            **({"orders": audit.orders} if audit.orders else {}),
            "told": dict(audit.told),
            **({"noted": audit.noted} if audit.noted else {}),
            "sent": [
                _audit_entry("to", line, count, head_bytes=audit.head[line], scalar_bytes=sent[line])
                for line, count in sorted(audit.sent.items())
            ],
            "received": [
                _audit_entry("from", line, count, scalar_bytes=received[line])
                for line, count in sorted(audit.received.items())
            ],
        }

    def interrupt(self, edges: Edges) -> Iterator[dict[str, Any]]:
        """Close the rounds under way and yield a line for each. edges: supplies those of a round that has not begun."""
        for round, audit in sorted(self._rounds.items()):
            if not (audit.sent or audit.received):
                continue
            if not audit.edges:
                self.note_edges(round, edges.of("send", round), edges.of("receive", round))
            yield self.close(round) | {"interrupted": True}


def _audit_entry(way: str, line: AuditLine, count: int, **parts: int) -> dict[str, Any]:
    peer, name, order = line
    return {way: peer, "vector": name, **({"order": order} if order else {}), "bytes": count, **parts}

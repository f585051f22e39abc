"""What left this peer and what reached it, by round, neighbour and vector; the verdicts on privacy rest on it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peer.network.neighbours import Edges
from peer.network.wire.frames import Heading
from peer.network.wire.manifest import PayloadSpec

AuditLine = tuple[str, str, int]
"""The other peer, the name of the vector or record, and how many orders of the ring had been announced in the round
when it was sent; 0 for what was received."""


@dataclass
class RoundAudit:
    """Bytes of one round; a message counts when it is written, so a repeat after a cut counts once.

    Scalars stand beside the tensors: the theory's bytes are those of tensors alone, and a record has no others.
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
    """The rounds under way; a finished one is closed and written away, so that memory stays flat."""

    def __init__(self, view: int = 0) -> None:
        """view: the number of the one view that it covers."""
        self._view = view
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

    def record_sent(self, round: int, to: Iterable[str], payload: PayloadSpec, heading: Heading) -> None:
        """A message that is being sent to each of `to`."""
        audit = self._rounds[round]
        for peer in to:
            line = peer, payload.name, len(audit.orders)
            audit.sent[line] += heading.length
            audit.head[line] += payload.head_bytes(heading.offset, heading.length)
            audit.sent_scalars[line] += 8 * heading.doubles
            self.tensor_bytes += heading.length

    def reordered(self, round: int, order: Iterable[str]) -> None:
        """All peers have announced that the ring is in another order from here on."""
        self._rounds[round].orders.append([*order])

    def record_scalars(self, round: int, name: str, count: int) -> None:
        """So many scalars of this peer go out beside a vector or in a record; counted once for all receivers."""
        if count:
            self._rounds[round].told[name] += count

    def noted(self, round: int, values: Mapping[str, object]) -> None:
        """Numbers, or lists of them, that user code puts into this peer's events and results, by name."""
        counts = {name: len(value) if isinstance(value, Sequence) else 1 for name, value in values.items()}
        self._rounds[round].noted |= counts

    def record_received(self, round: int, sender: str, payload: PayloadSpec, count: int, scalars: int) -> None:
        """So many bytes of the vector and of the scalars beside it have arrived."""
        audit = self._rounds[round]
        audit.received[sender, payload.name, 0] += count
        audit.received_scalars[sender, payload.name, 0] += scalars

    def close(self, round: int) -> dict[str, Any]:
        """The finished round as one line of audit.jsonl."""
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
        """What has left and arrived in the rounds under way, a line each; `edges` has those of one not begun."""
        for round, audit in sorted(self._rounds.items()):
            if not (audit.sent or audit.received):
                continue
            if not audit.edges:
                self.authorise(round, edges.of("send", round), edges.of("receive", round))
            yield self.close(round) | {"interrupted": True}


def _audit_entry(way: str, line: AuditLine, count: int, **parts: int) -> dict[str, Any]:
    peer, name, order = line
    return {way: peer, "vector": name, **({"order": order} if order else {}), "bytes": count, **parts}

"""What left a peer and nobody can look into: for this much the proof rests on somebody's word.

A part of the model is taken from the model by the runtime itself. A vector of a protocol's own is whatever its code
wrote into it. Of the protocols that come with this project the code is known and tested, so what they declare a vector
to be laid out like (`like`) counts; code of a user's own has nobody's word but its author's. Bytes that nobody can read
(ciphertexts, half precision) are on trust in either.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.reports.summary_json import Trusted
from peer.protocols.declarations import Declarations, Share

Audit = Mapping[str, Any]
DOUBLE, FLOAT = 8, 4
"""Bytes of one number beside a vector or in a record, and of one value of a head."""


@dataclass(frozen=True)
class Promise:
    """What the run's protocol declares, whether its code is a user's own, and how many values a head has."""

    declared: Declarations
    own_code: bool
    head: int

    def on_trust(self, audits: Mapping[str, Audit]) -> list[Trusted]:
        """{vector, why, bytes} of each vector whose content nobody can check, by name; bytes of all peers."""
        sent: Counter[tuple[str, str]] = Counter()
        for audit in audits.values():
            for record in audit["rounds"]:
                for entry in record["sent"]:
                    share = self._share(entry["vector"], record["round"])
                    if entry["bytes"] and share and (why := self._why(share)):
                        sent[entry["vector"], why] += entry["bytes"]
        found: list[Trusted] = [
            {"vector": name, "why": why, "bytes": size} for (name, why), size in sorted(sent.items())
        ]
        return found + self._numbers(audits)

    def holds_head(self, vector: str, round: int) -> bool:
        """Whether that vector, as it is declared, has a head in it."""
        share = self._share(vector, round)
        return share is None or share.holds_head

    def _share(self, vector: str, round: int) -> Share | None:
        return next((share for share in self.declared.travelling(round) if share.vector == vector), None)

    def _why(self, share: Share) -> str | None:
        if share.bytes:
            return "bytes that nobody but the protocol can read"
        if not share.own or share.holds_head:
            return None  # a part of the model, or counted as one that holds a head
        if share.like is None:
            return "the protocol does not declare what is in it"
        return "declared like the extractor by code of your own, which nobody can check" if self.own_code else None

    def _numbers(self, audits: Mapping[str, Audit]) -> list[Trusted]:
        """Numbers of code of a user's own, where those of one peer are enough to hold a head; each counts once."""
        told = {id: self._told(audit) for id, audit in audits.items()}
        most = DOUBLE * max(map(Counter.total, told.values()), default=0)
        if not self.own_code or not self.head or most < FLOAT * self.head:
            return []
        together = sum(told.values(), Counter[str]())
        why = "numbers of code of your own, enough of them to hold a head"
        return [{"vector": name, "why": why, "bytes": DOUBLE * count} for name, count in sorted(together.items())]

    def _told(self, audit: Audit) -> Counter[str]:
        told: Counter[str] = Counter()
        for record in audit["rounds"]:
            told.update(record.get("told", {}))
        return told

"""What left a peer and nobody can look into: for this much the proof rests on somebody's word.

A part of the model is taken from the model by the runtime itself. A vector of a protocol's own is whatever its code
wrote into it. Of the protocols that come with this project the code is known and tested, so what they declare a vector
to be laid out like (`like`) counts; code of a user's own has nobody's word but its author's. Bytes that nobody can read
(ciphertexts, half precision) are on trust in either.

Numbers beside vectors, in records and in notes can be parts of a head. Where code of a user's own takes part, be it the
protocol, the task, the model, a training step or the data, it has a say in them, and all of them are on trust.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from launcher.reports.flows import Audit
from launcher.reports.summary_json import Trusted
from peer.protocols.declarations import Declarations, Share

DOUBLE = 8
"""Bytes of a number."""


@dataclass(frozen=True)
class Promise:
    """What the run's protocol declares, and each `module:Name` of a user's own code that took part."""

    declared: Declarations
    own_code: Sequence[str] = ()

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
        told = self._numbers(audits, "told", "numbers that code of your own had a say in")
        noted = self._numbers(audits, "noted", "noted by code of your own, and so in events and results")
        return [*found, *told, *noted]

    @property
    def whose_code(self) -> str:
        """Whose code took part, in words."""
        if not self.own_code:
            return "no code of your own took part"
        named = ", ".join(f"`{name}`" for name in self.own_code)
        return f"code of your own took part, {named}, and nobody can check what it wrote into the model"

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
        own = self.declared.protocol in self.own_code
        return "declared like the extractor by code of your own, which nobody can check" if own else None

    def _numbers(self, audits: Mapping[str, Audit], kind: str, why: str) -> list[Trusted]:
        """By name, where code of a user's own took part; each counts once, however many peers get it."""
        counts: Counter[str] = Counter()
        for record in (record for audit in audits.values() for record in audit["rounds"] if self.own_code):
            counts.update(record.get(kind, {}))
        return [{"vector": name, "why": why, "bytes": DOUBLE * count} for name, count in sorted(counts.items())]

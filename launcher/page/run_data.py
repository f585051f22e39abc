"""What there is of a run: its spec, its peers' directories, and its summary once the run has finished.

All that a report shows is derived from this one object, lazily: the histories of the peers, their audits, the views,
who sent to whom, and the proof of privacy. A run that still goes on is one without a summary.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from launcher.command_spec import flat
from launcher.headline import Headline
from launcher.history import ACTIVITIES, PeerHistory
from launcher.reports import privacy
from launcher.reports.peer_files import audits, decided_views
from launcher.reports.summary_json import Privacy, Summary
from launcher.run_files import RunFiles
from launcher.views import Views
from peer.files import MAX_SETTINGS_BYTES, read_plain
from peer.learning.training.phase import Training
from peer.spec.agreement import Agreement
from peer.spec.federation import Spec
from peer.telemetry.events import RingOrdered

UNREAD = ("data", "training")
"""What a spec lacks that was read with its peers' files."""


@dataclass(frozen=True)
class RunData:
    """What there is of a run. summary: None before any peer has finished."""

    spec: Spec
    views: Views
    histories: Mapping[str, PeerHistory]
    summary: Summary | None = None
    audits: privacy.Audits = field(default_factory=dict)
    goes_on: bool = False
    """Whether the run still goes on: nothing is proven then, and what only audits hold is not there."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All, where `spec` is without data and training, as it was read with its peers' files; else empty."""
    launched: Mapping[str, Any] = field(default_factory=dict)
    """What its launcher wrote of how it began the run; empty where there was none."""

    @classmethod
    def read(
        cls, spec: Spec, places: Mapping[str, Path], summary: Summary | None, settings: Mapping[str, Any] = {}
    ) -> Self:
        """Read the data from the peers' own files."""
        histories = {id: PeerHistory.read(id, places[id]) for id in spec.ids if id in places}
        views = decided_views(spec, places, summary.rounds if summary else spec.rounds)
        began = next(filter(None, (launched(RunFiles(one.resolve().parent)) for one in places.values())), {})
        return cls(spec, views, histories, summary, audits(places), settings=settings, launched=began)

    @cached_property
    def whole(self) -> Mapping[str, Any]:
        """All settings."""
        return self.settings or self.spec.model_dump(mode="json")

    @property
    def agreed(self) -> Mapping[str, Any]:
        """What all peers agreed on, by dotted keys, and how many they are."""
        return flat(Agreement.from_plain(self.whole).content) | {"peers": len(self.spec.ids)}

    @property
    def chosen(self) -> Mapping[str, Any]:
        """The protocol, and the settings other than the defaults, by their dotted keys."""
        chosen = {"protocol.name": self.spec.protocol.name}
        chosen |= flat(self.spec.model_dump(mode="json", exclude_defaults=True, exclude={"name", "ring", *UNREAD}))
        usual = flat({"training": Training().model_dump(mode="json")})
        found = flat({key: self.whole.get(key) for key in UNREAD})
        return chosen | {key: value for key, value in found.items() if value and value != usual.get(key)}

    @cached_property
    def headline(self) -> Headline:
        return Headline.from_spec(self.spec)

    @cached_property
    def sent_vectors(self) -> list[privacy.SentVector]:
        """What went along which edge."""
        return privacy.sent_vectors(self.views, self.audits)

    @cached_property
    def used_edges(self) -> set[privacy.Edge]:
        """The edges used in the rounds themselves, and not when the ring was set up."""
        return {one.edge for one in self.sent_vectors if one.round > 0}

    @cached_property
    def earlier_edges(self) -> set[privacy.Edge]:
        """The edges used only before the ring got its last order."""
        return privacy.earlier_edges(privacy.ring_periods(self.views, self.sent_vectors))

    @property
    def completed(self) -> int:
        """The last round that all present members have behind them."""
        members = self.views.spans[-1].view.members if self.views.spans else self.spec.ids
        told = [self.histories[id].completed for id in members if id in self.histories]
        return self.summary.rounds if self.summary else min(told, default=0)

    @property
    def orders(self) -> list[RingOrdered]:
        """Each time that the ring was ordered, as one peer after the other tells of it."""
        return [one for history in self.histories.values() for one in history.orders]

    @property
    def ring_cost(self) -> tuple[float | None, float | None]:
        """The ring's cost before and after ordering; None if it was not ordered."""
        if self.summary:
            return self.summary.ring_cost.get("before"), self.summary.ring_cost.get("after")
        return (self.orders[0].cost_before, self.orders[-1].cost_after) if self.orders else (None, None)

    @property
    def proof(self) -> Privacy | None:
        """The proof of privacy; None while nothing is proven."""
        if self.goes_on:
            return None
        if self.summary:
            return self.summary.privacy
        declared = privacy.privacy_declaration(self.spec, self.audits)
        return privacy.privacy(self.views, self.audits, declared, self.spec.ids)

    @property
    def so_far(self) -> dict[str, Any]:
        """The figures before any peer has finished: after the last round that all have completed, each peer's own."""
        peers: list[dict[str, Any]] = []
        for id, history in self.histories.items():
            until = [done for number, done in history.rounds.items() if number <= self.completed]
            judged = max((done for done in until if done.evaluated), key=lambda done: done.round, default=None)
            figure = self.headline.value(judged) if judged else None
            sent = max((done.bytes_sent for done in until), default=0)
            spent = {name: round(history.seconds(name), 3) for name in ACTIVITIES}
            peers += [{"id": id, "round": history.completed, "figure": figure, "bytes_sent": sent, "seconds": spent}]
        spec, words = self.spec, self.headline.words
        about = {"name": spec.name, "protocol": spec.protocol.name, "peers": len(spec.ids), "rounds": spec.rounds}
        return {**about, "finished": False, "completed": self.completed, "figure": words, "per_peer": peers}


def launched(files: RunFiles) -> Mapping[str, Any]:
    """What a launcher wrote of how it began the run; empty where there was none."""
    with suppress(OSError, ValueError):
        found = json.loads(read_plain(files.engine, MAX_SETTINGS_BYTES))
        return found if isinstance(found, dict) else {}
    return {}

"""All peers of a run, as the launcher sees them: by the event files they write."""

from collections.abc import Sequence
from pathlib import Path

from launcher.peer_view import ENDED, Event, PeerView, mean
from launcher.tail import Tail, objects


class Federation:
    """All peers of a run, followed through their `events.jsonl`."""

    def __init__(self, directory: Path, ids: Sequence[str], rounds: int, test: str):
        self.rounds, self.test, self.ending = rounds, test, False
        self.peers = {id: PeerView(id) for id in ids}
        self._tails = {id: Tail(directory / id / "events.jsonl") for id in ids}
        self._since: tuple[float, int] | None = None

    def look(self, now: float) -> list[str]:
        """Reads what is new; what a person should be told of it. `now` in unix seconds."""
        told = [line for id in self.peers for line in self.look_at(id)]
        overdue = [] if self.ending else [peer.overdue(now) for peer in self.peers.values()]
        return told + [line for line in overdue if line]

    def look_at(self, id: str) -> list[str]:
        """Reads what is new of one peer."""
        told = []
        for event in objects(self._tails[id].lines()):
            line = self.peers[id].hear(event)
            if line and not (event["event"] == "link" and self._expected(event)):
                told.append(line)
        return told

    def _expected(self, event: Event) -> bool:
        """Whether a link goes down because its neighbour has finished."""
        neighbour = self.peers.get(str(event.get("neighbour")))
        return self.ending or neighbour is None or neighbour.state in ("serving", "done")

    def forget_past(self) -> None:
        """Takes in what an earlier run left, without telling of it or taking its states for the present."""
        self.look(0.0)
        for peer in self.peers.values():
            peer.state, peer.failure, peer.waiting, peer.links = "starting", None, (), {}

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()

    @property
    def round(self) -> int:
        """The last round that every peer has completed; 0 before."""
        return min(peer.completed for peer in self.peers.values())

    def mean_accuracy(self, round: int) -> float | None:
        """Mean over the peers that have one of the accuracy after `round`."""
        return mean(peer.accuracy(self.test, round) for peer in self.peers.values())

    def mean_loss(self, round: int) -> float | None:
        return mean(peer.history.get(round, {}).get("loss") for peer in self.peers.values())

    def doubted(self, id: str) -> list[str]:
        """The neighbours that do not hear the peer now."""
        return [
            other.id
            for other in self.peers.values()
            if other.links.get(id) in ("suspected", "down") and other.state not in ENDED
        ]

    def seconds_left(self, now: float) -> float | None:
        """An estimate from the rounds completed under this eye; None before there are any."""
        if self._since is None:
            self._since = (now, self.round)
        begun, first = self._since
        done = self.round - first
        return (now - begun) / done * (self.rounds - self.round) if done else None

"""A peer's life cycle: its states, what it waits for in each of them, and the watchers that run meanwhile.

A peer waits for

- its neighbours at the start (`wait_for_neighbours`),
- the staleness bound before each round (`await_staleness_bound`, rule R6),
- its neighbours at the end (`drain`, rule R8), until they have on disk all that they may still ask for,
- and, if the members of the run may change, the `MembershipGate`: it is all that the rounds know of the membership. If
  members stay the same the gate is always open; `peer.runtime.membership.gate` has the other one.

The bounds of a peer's waits and stores are in one object, which is passed in (`RuntimeLimits`). `ReportIntervals` says
when a peer reports a wait; no such interval ends a wait. Watchers look at the neighbours for as long as a peer runs: an
unresponsive one is reported every minute, or ends the run; one that sends only heartbeats is reported, too.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from peer.errors import FailedError
from peer.network.durability import NOTHING, Durability
from peer.network.limits import Limits, Timeouts
from peer.network.neighbours import CORRECT_ADDRESS_HINT, ONE_WAY, Edges, Neighbour
from peer.network.network import Network
from peer.network.streams.stream import no_views
from peer.network.transport import Pipe
from peer.network.wire.frames import Key
from peer.spec.federation import Spec
from peer.tasks import background, within
from peer.telemetry.events import MAKE_ALIKE_HINT, MAX_NAMED, Awaited, NeighbourLost, Report, StateChanged, Waiting
from peer.views.signing import UNSIGNED, Keyring
from peer.views.view import STALENESS_BOUND, View

State = Literal["joining", "ready", "training", "communicating", "evaluating", "serving", "done", "failed"]
TRANSITIONS: dict[State, tuple[State, ...]] = {
    "joining": ("ready", "serving", "failed"),
    "ready": ("training", "communicating", "evaluating", "failed"),
    "training": ("communicating", "evaluating", "failed"),
    "communicating": ("training", "evaluating", "failed"),
    "evaluating": ("communicating", "ready", "serving", "failed"),
    "serving": ("done", "failed"),
    "done": (),
    "failed": (),
}
MEANING: dict[State, str] = {
    "joining": "shaking hands with its neighbours",
    "ready": "at the start of a round, waiting until nobody is more than W rounds behind",
    "training": "training on its own samples",
    "communicating": "sending to its neighbours, waiting for theirs",
    "evaluating": "testing its model",
    "serving": "finished; keeps its messages until the neighbours have them on disk",
    "done": "over",
    "failed": "over, with a reason",
}


class CheckpointLostError(FailedError):
    """Raised when what this peer had on disk is lost, and no replay can bring it back."""


class Lifecycle:
    """What a peer does, in which round, and how long its phases have taken; reports each change of state.

    Hand out this object, never its `times`: a resume replaces them.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        """The function that takes this peer's events."""
        self.state: State = "joining"
        self.round = 0
        self.times = {"train": 0.0, "communicate": 0.0, "evaluate": 0.0}
        """Seconds spent on each phase in the whole run; they are part of checkpoints."""

    def become(self, state: State) -> None:
        """Enter a state, unless it is the present one; RuntimeError for a step that is not in `TRANSITIONS`."""
        if state == self.state:
            return
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"a peer that is {self.state} cannot become {state}")
        self.state = state
        self.report(StateChanged(state=state, round=self.round))

    @contextmanager
    def timed(self, phase: Literal["train", "communicate", "evaluate"]) -> Iterator[None]:
        """Count the time of the block, unless it raises: a checkpoint must hold the same time after a replay."""
        began = time.perf_counter()
        yield
        self.times[phase] += time.perf_counter() - began


@dataclass(frozen=True)
class ReportIntervals:
    """Seconds until a waiting peer says so. None of them ends a wait."""

    look: float = 1.0
    """The time between two looks at the neighbours that keep a peer waiting."""
    behind: float = 2.0
    """The wait at the staleness bound until it is reported, and the least time from one such report to the next."""
    stalled: float = 30.0
    """The wait for a message that makes no progress, from a neighbour that sends heartbeats, until it is reported."""
    stalled_again: float = 600.0
    """The time from one report of the same stalled message to the next."""
    lost_again: float = 60.0
    """The time from one report of an unresponsive neighbour to the next."""
    members_again: float = 60.0
    """The time from the first report of a wait for members to the second; it doubles with each further report."""
    members_longest: float = 3600.0
    """The longest time between two reports of a wait for members."""


@dataclass(frozen=True)
class RuntimeLimits:
    """Timeouts and limits of the network, and how the runtime above it waits."""

    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    reminders: ReportIntervals = field(default_factory=ReportIntervals)
    votes: bool = True
    """Whether members can be voted out, or stopped until the others go on without them."""

    def in_one_process(self, peers: int, patience: float) -> "RuntimeLimits":
        """Limits for so many peers in one event loop: they fall silent together, and nobody asks for their status, or
        votes.

        More than 20 peers together send no more heartbeats than 20 do, but each still sends several within `patience`
        (seconds).
        """
        least = patience / (4 * self.timeouts.heartbeat_interval)
        factor = max(1.0, min(peers / 20, least))
        reminders = replace(self.reminders, look=factor * self.reminders.look)
        return replace(self, timeouts=self.timeouts.stretched(factor), reminders=reminders, votes=False)


async def wait_for_neighbours(edges: Edges, done: int, report: Report, patience: float) -> None:
    """Wait for a handshake with every neighbour, unless round `done` turns out to be the last; FailedError after
    `patience` seconds names those still missing."""
    async with background() as group:
        group.create_task(_report_missing(edges, report))
        complete = await within(patience, edges.wait_complete(done))
    if not complete and (missing := edges.missing()):  # else the last one came at the same moment
        who = "; ".join(f"{neighbour.place}: {why}" for neighbour, why in missing)
        raise FailedError(f"gave up after {patience:g} s of waiting for {who}{_hint(missing)}")
    here = "all neighbours are here" if not edges.missing() else "no neighbour is awaited any more"
    report(Waiting(cause="join", awaited=(), sentence=here))


def _hint(missing: list[tuple[Neighbour, str]]) -> str:
    """A hint what to do; empty if the reasons say so themselves."""
    reasons = [why for _, why in missing]
    if not all(
        "refused:" in why or "certificate" in why or why.endswith((ONE_WAY, CORRECT_ADDRESS_HINT)) for why in reasons
    ):
        return "; start it or correct its address"
    if all("refused:" in why for why in reasons) and not any(MAKE_ALIKE_HINT in why for why in reasons):
        return "; make the peers agree"
    return ""


async def await_staleness_bound(durability: Durability, spec: Spec, round: int, report: Report, seconds: float) -> None:
    """Wait until no peer is more than W rounds behind `round` (rule R6); report which ones are, whenever that changes.

    seconds: shorter waits are not reported. A peer that is behind need not be a neighbour: then no link is down here,
    and nothing else would show it.
    """
    said = None
    while not await within(seconds, durability.wait_within_bound(round)):
        behind = durability.behind(round)  # empty if the news came at the same moment
        if behind and (waiting := _behind_bound(behind, spec, round)) != said:
            report(waiting)
            said = waiting
    if said:
        over = f"nobody is too far behind any more: round {round} begins"
        report(Waiting(cause="staleness", awaited=(), sentence=over))


async def drain(network: Network, patience: float = inf, required: Callable[[], Collection[str]] = tuple) -> list[str]:
    """Wait until the neighbours have all on disk that they may ask for (rule R8); return those that have not said so.

    The wait ends when those that are behind have sent no heartbeat for `patience` seconds, and none of them is one of
    the `required` peers. Those that send heartbeats are reported: they may have more to train, or lie.
    """
    edges, durability, end = network.edges, network.durability, network.last_round
    clock, said = asyncio.get_running_loop().time, False
    began = clock()
    due = began + ReportIntervals.stalled
    while behind := [n for n in edges.neighbours.values() if durability.of(n.id) < edges.last(n.id, end)]:
        left = max(began, *(neighbour.signs.last_heartbeat for neighbour in behind)) + patience - clock()
        if left < 0.01:
            ids = [neighbour.id for neighbour in behind]
            if not {*required()}.intersection(ids):
                return ids
            left = patience
        if clock() >= due:
            up = [neighbour for neighbour in behind if neighbour.state == "up"]
            due = clock() + (ReportIntervals.stalled_again if up else ReportIntervals.look)
            if up:
                said = True
                network.report(_waiting_to_end(up))
        await within(min(left, due - clock()), durability.changed.next())
    if said:
        network.report(Waiting(cause="stalled", awaited=(), sentence="all neighbours have on disk what they need"))
    return []


def _waiting_to_end(behind: list[Neighbour]) -> Waiting:
    why = "it has not said that its last round is on disk, but that it is"
    who = tuple(Awaited(one.id, one.address, f"{why} {one.signs.activity}") for one in behind)
    return Waiting(cause="stalled", awaited=who, sentence=f"cannot end: waiting for {', '.join(map(str, who))}")


async def _report_missing(edges: Edges, report: Report) -> None:
    said = None
    while True:
        await asyncio.sleep(1)
        waiting = _waiting_to_join(edges.missing())
        if waiting != said:
            report(waiting)
            said = waiting


def _behind_bound(behind: dict[str, int], spec: Spec, round: int) -> Waiting:
    """The peers that are furthest behind, at most MAX_NAMED, and the number of the others."""
    addresses = spec.addresses
    first = sorted(behind, key=lambda id: behind[id])[:MAX_NAMED]
    who = tuple(Awaited(id, addresses[id], _on_disk(behind[id], round)) for id in first)
    others = len(behind) - len(first)
    named = ", ".join(map(str, who)) + (f" and {others} others" if others else "")
    sentence = f"round {round} cannot begin: waiting for {named}"
    return Waiting(cause="staleness", awaited=who, others=others, sentence=sentence)


def _on_disk(durable: int, round: int) -> str:
    known = f"only its round {durable}" if durable > NOTHING else "no round of it"
    return f"{known} is known to be on disk, {round - STALENESS_BOUND} is needed"


def _waiting_to_join(missing: list[tuple[Neighbour, str]]) -> Waiting:
    who = tuple(Awaited(neighbour.id, neighbour.address, why) for neighbour, why in missing)
    sentence = f"waiting for {'; '.join(map(str, who))}" if who else "all neighbours are here"
    return Waiting(cause="join", awaited=who, sentence=sentence)


class MembershipGate:
    """The gate between rounds and membership. This one, for members that stay the same, is always open.

    Its other forms (`membership/gate.py`, `membership/replay.py`) differ in three verbs: before a round
    (`wait_to_start`), at the end of a view or of the run (`wait_to_end`), and when a round is on disk (`announce`).
    The rest answers the network and the checkpoints: how long a join may take, which states are still needed, and what
    to reply to requests about views.
    """

    can_be_excluded = False
    """Whether the others may continue without this peer; if so, it can be admitted again whatever it has lost."""

    def __init__(self, view: View, patience: float) -> None:
        """patience: seconds."""
        self.view, self._patience = view, patience
        self.keyring: Keyring = UNSIGNED
        self.waiting: Waiting | None = None
        """The wait for members, while too few are here to decide on the next view."""
        self.last_rounds: Mapping[int, int] = {}
        """For the number of an earlier view, the round that all its members that are in this view have on disk."""

    def join_timeout(self, done: int) -> float:
        """Return the seconds to wait for neighbours after round `done`."""
        return self._patience

    def attach(self, network: Network, done: int) -> None:
        """Take part in the view from now on: the peer has resumed after round `done` (-1: from the beginning)."""

    async def wait_to_start(self, round: int) -> None:
        """Wait until this peer may begin that round, which it may not while a view is being decided on (rule V1)."""

    async def wait_to_end(self, network: Network, finished: bool) -> None:
        """Wait until all neighbours have this view's last round on disk (rule R8), so that this peer may go on to the
        next view. finished: the run is over, and they have it; wait until no other member needs this peer."""
        if not finished:
            await drain(network)

    def announce(self, network: Network, durable: int) -> None:
        """Announce to the others that the rounds up to this one are on disk, as far as they may be told yet."""
        network.announce(durable)

    def oldest_needed_round(self, durability: Durability) -> int:
        """Return the oldest round that this peer may have to go back to."""
        return durability.low_watermark

    async def answer(self, pipe: Pipe) -> None:
        """Serve a stream with a request about views."""
        await no_views(pipe)


async def watch_unresponsive(
    edges: Edges, spec: Spec, gate: MembershipGate, lifecycle: Lifecycle, reminders: ReportIntervals
) -> None:
    """Report a neighbour that is silent, or accepts nothing, for longer than `patience`; fail with `on_loss: stop`.

    If members may change, silent ones are not reported here: they are excluded, or waited for together.
    """
    clock = asyncio.get_running_loop().time
    said: dict[str, float] = {}
    while True:
        await asyncio.sleep(reminders.look)
        for neighbour in [*edges.neighbours.values()]:
            heard = inf if gate.can_be_excluded else neighbour.signs.last_heartbeat
            rejecting = neighbour.delivery.rejection.since if neighbour.delivery.rejection else inf
            lost = clock() - min(heard, rejecting)
            if lifecycle.state in ("joining", "serving") or neighbour.state == "left" or lost < spec.patience:
                said.pop(neighbour.id, None)
                continue
            how = "so" if rejecting < heard else "silent"
            why = neighbour.delivery.rejection.reason or neighbour.reason
            # What the link says is then the time after which it was suspected.
            known = "" if how == "silent" and why.startswith(how) else f" ({why})"
            who = f"{neighbour.place}{known}, {how} for {lost:.0f} s"
            if spec.on_loss == "stop":
                raise FailedError(f"stopped because of {who}; start it again, then this peer")
            if clock() - said.get(neighbour.id, -reminders.lost_again) >= reminders.lost_again:
                said[neighbour.id] = clock()
                sentence = f"still waiting for {who}; if it has ended, start it again"
                lifecycle.report(NeighbourLost(neighbour=neighbour.id, sentence=sentence))


async def watch_own_regression(edges: Edges, lifecycle: Lifecycle, faulty: int = 0) -> None:
    """Raise CheckpointLostError if all receivers refuse this peer because it is behind what it had announced.

    As many receivers as may lie (`faulty`) are not enough: if they tell the truth, the others go on without this peer
    anyway.
    """
    while True:
        await asyncio.sleep(1)
        receivers = [edges.neighbours[id] for id in edges.peers("send")]
        missing = all(neighbour.delivery.knows_lost_rounds for neighbour in receivers)
        if lifecycle.state == "joining" and len(receivers) > faulty and missing:
            raise CheckpointLostError(
                "this peer has lost rounds that were on its disk, as all its neighbours say; once the others have gone "
                "on without it, they admit it again"
            )


async def watch_stalled(network: Network, report: Report, reminders: ReportIntervals) -> None:
    """Report a neighbour that sends heartbeats, but not the message that this peer waits for.

    It may have more to train, or wait for its own neighbour; then the wait ends. It may also run other code, or lie:
    then nothing else would show it. No deadline can tell the two cases apart.
    """
    clock = asyncio.get_running_loop().time
    since: dict[str, tuple[Key, int, float]] = {}
    said: dict[str, float] = {}
    while True:
        await asyncio.sleep(reminders.look)
        now, before = clock(), since
        since, stalled, due = {}, dict[str, Awaited](), False
        for neighbour, key, frames in network.stalled_messages():
            id, seen = neighbour.id, before.get(neighbour.id)
            since[id] = seen if seen and seen[:2] == (key, frames) else (key, frames, now)
            waited = now - since[id][2]
            told = now - said.get(id, -reminders.stalled_again) < reminders.stalled_again
            if (neighbour.state == "up" or neighbour.delivery.rejection) and waited >= reminders.stalled and not told:
                said[id], due = now, True
            why = f"nothing more of round {key.round} for {waited:.0f} s; it says that it is {neighbour.signs.activity}"
            reason = "; ".join(filter(None, [why, neighbour.delivery.rejection.reason]))
            stalled[id] = Awaited(id, neighbour.address, reason)
        back = [id for id in said if since.get(id) != before.get(id)]
        for id in back:
            del said[id]
        if due or back:
            report(_waiting_for_stalled([stalled[id] for id in said], back))


def _waiting_for_stalled(stalled: list[Awaited], back: list[str]) -> Waiting:
    """The report of neighbours that stall, and of those that have made progress again."""
    news = [f"{id} sends again" for id in back]
    if stalled:
        news.append(f"{'still ' if back else ''}waiting for {', '.join(map(str, stalled))}")
    return Waiting(cause="stalled", awaited=tuple(stalled), sentence="; ".join(news))

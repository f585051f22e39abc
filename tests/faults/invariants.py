"""What must hold of every simulated run; each function gives what is wrong."""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from peer.network.neighbours import MAX_RELEASE_CHARACTERS
from peer.runtime.checkpoints import Checkpoints, tensor_digest
from peer.runtime.runtime import Runtime
from peer.spec.recordings import VIEWS
from peer.telemetry.events import CallerRefused, Conflict, EndedUnacknowledged, ReleaseSeen, Returning
from peer.views.reasons import LEAVES
from peer.views.view import STALENESS_BOUND, View, view_rounds

if TYPE_CHECKING:
    from faults.simulation import Simulation

OF_A_VIEW = 2048
"""Bytes in views.json for each member and view, with keys of P-256: votes, and who is expelled why."""
MANY, OF_A_ROUND = 300, 20
"""Events that one may report, and besides for each round that it plays."""
TASKS = 400
"""Streams and calls of one process at a time."""


def of_views(run: "Simulation") -> Iterator[str]:
    """All know the same ones, each of them as far as it was told; and who has the last word is one of them."""
    longest = run.views
    for id, lives in run.lived.items():
        if id in run.honest and (views := lives.views) != longest[: len(views)]:
            yield f"{id} knows other views: {views}, not {longest}"
    for before, after in pairwise(longest):
        yield from _of_change(run, before, after)


def of_what_all_hold(run: "Simulation") -> Iterator[str]:
    """Check that admitted peers end with the same state that all others have in common."""
    for name in run.spec.protocol.state_contract.held_by_all:
        held = {id: one.peer for id, one in run.runtimes.items() if run.outcome.digests[id]}
        bits = {id: tensor_digest(peer.state[name]) for id, peer in held.items() if name in peer.state}
        if len({*bits.values()}) > 1:
            yield f"`{name}` is not the same at all members: {bits}"


def of_token(run: "Simulation") -> Iterator[str]:
    """It has gone through every member in every round that counts, and no step of one who stays is lost."""
    if run.spec.protocol.name != "tiny:Counting":
        return
    taken, token = dict.fromkeys(run.spec.ids, 0), 0
    for span in view_rounds(run.views, run.spec.rounds):
        entering = dict(span.view.entrants)
        token = taken[[id for id in span.view.members if id not in entering][-1]] if span.first > 1 else 0
        for _ in range(max(1, span.first), span.last + 1):
            for id in span.view.members:
                taken[id] = token = token + 1
    for id, one in run.runtimes.items():
        if run.outcome.digests[id] and (found := float(one.peer.model[0])) != taken[id]:
            yield f"the token of {id} has counted {found:g} steps, and not {taken[id]}"


def _of_change(run: "Simulation", before: View, after: View) -> Iterator[str]:
    """Check that nobody who was always there is left out; if pipes break, a question may be lost."""
    traitors = {*run.wires.weather.traitors}
    left = {*before.members} - {*after.members} - run.struck - {*after.expelled} - traitors
    leavers = {order.victim for order in run.orders if not order.by}
    # One that asks to leave may find that another has lost its disk: then the view is not planned, and it is out, too.
    left -= {id for id in leavers if after.planned or f"{id} {LEAVES}" in after.reason}
    if {*after.expelled} & {*after.members} or not {*before.expelled} <= {*after.expelled}:
        yield f"who was voted out is a member again: {after}"
    for id in {*after.expelled} - {*before.expelled} - traitors:
        consenting = {one for order in run.orders if order.victim == id for one in order.by} | traitors
        if not before.is_quorum(consenting - {id}, run.spec.tolerated(run.certificates is not None)):
            yield f"{id} was voted out by {consenting} of {before.members}: {after}"
    # Before a round is done, who has no right neighbour promises nothing: it may have forgotten a promise. After the
    # last one, who has finished may have gone.
    if left and 0 < after.first <= run.spec.rounds and not run.wires.weather.cut:
        yield f"{left} were left out and had always been there: {after}"


def of_events(run: "Simulation", id: str) -> Iterator[str]:
    """Nobody sends two contents for one step, turns an honest peer away, or has lost what no fault took."""
    harmed = run.struck or run.wires.lies or run.wires.weather.traitors
    for event in run.heard[id]:
        refused = isinstance(event, CallerRefused) and not _lies(run, event.caller)
        if refused and harmed and "no neighbour" in event.reason:
            continue  # who was away may not know who sits where
        if refused and any(f"made out to `{liar}`" in event.reason for liar in run.wires.weather.traitors):
            continue
        if isinstance(event, ReleaseSeen):
            honest, cut = not _lies(run, event.neighbour), len(event.release) <= MAX_RELEASE_CHARACTERS
            if honest or not cut or not event.release.isprintable():
                yield f"{id} reports {event}"
        returns = isinstance(event, Returning) and id not in run.robbed
        conflict = isinstance(event, Conflict) and not _lies(run, event.sender)
        if conflict or refused or returns or (isinstance(event, EndedUnacknowledged) and run.calm):
            yield f"{id} reports {event}"


def _lies(run: "Simulation", id: str) -> bool:
    return id in run.wires.lies or id in run.robbed or id in run.wires.weather.traitors or id not in run.spec.ids


def of_words(run: "Simulation", id: str, runtime: Runtime) -> Iterator[str]:
    """What was released or remembered was announced by its peer (R4), and nobody is too far ahead (R6)."""
    network, round = runtime.network, runtime.peer.round
    # All members of a later view begin with the round before its first one, whatever they had.
    view = runtime.setup.view
    announced = {peer: max(at, view.first - 1) for peer, at in run.announced.items()}
    for peer, other in run.runtimes.items():
        if other.setup.view.number != view.number:
            announced[peer] = run.spec.rounds  # it has gone on: what was said in this view is void, or done with
    announced |= dict.fromkeys(run.wires.weather.traitors, run.spec.rounds)
    for peer, at in network.durability.first_hand.items():
        if at > announced[peer]:
            yield f"{id} believes that round {at} of {peer} is on disk, which is at {announced[peer]}"
    for peer, link in network.links.items():
        if link.outbox._released > announced[peer]:
            yield f"{id} has dropped messages that {peer} may ask for"
    older = {peer for (_, peer), span in network.edges._spans.items() if span.last is None and span.first < round}
    # R6 binds it to others as far as it has heard of them, which a restarted peer may not have.
    known, around = network.durability, network.edges.current()
    heard = {peer for peer in runtime.setup.view.members if known._latest(peer, around) is not None}
    restarted = run.kills or any(kill.startswith(f"{id} ") for kill in run.outcome.kills)
    bound = [*older] if run.wires.lies or run.wires.conspiracy or restarted else older | heard if older else []
    for peer in bound:
        if round > announced[peer] + STALENESS_BOUND:
            yield f"{id} is in round {round}, and {peer} has {announced[peer]} on disk"


def of_memory(run: "Simulation", id: str) -> Iterator[str]:
    """What others say makes no member keep, write or do ever more."""
    lives, most = run.lived[id], len(run.spec.ids)
    if not (membership := lives._membership) or not (runtime := lives.runtime):
        return
    decided = len(membership.memory.decisions)
    path = run.out / id / VIEWS
    size = path.stat().st_size if path.exists() else 0
    if size > OF_A_VIEW * most * (decided + 6):
        yield f"{id} keeps {size} bytes in views.json, of {decided} views"
    memory, durability = membership.memory, runtime.network.durability
    tables = {
        "consents": memory.consents,
        "guilt": memory.guilt,
        "askers": membership.admission_requests,
        "answers": membership.answered,
        "failures": membership._failures,
        "relayed": membership._relayed[1],
        "turns": membership.turns._spent,
        "waits": membership.turns._free_at,
        "words": durability.first_hand,
        "hearsay": durability._relayed,
        "announcements": durability._announced,
        "lives": durability._incarnations,
    }
    for name, table in tables.items():
        if len(table) > most:
            yield f"{id} keeps {len(table)} {name} of {most} members"
    if (told := run.told[id].count) > MANY + OF_A_ROUND * run.spec.rounds * (1 + decided):
        yield f"{id} has reported {told} events, with {decided} views"
    if (busy := sum(not task.done() for task in run.lives[id].tasks)) > TASKS:
        yield f"{id} is at {busy} things at a time"


def of_going_back(run: "Simulation", id: str, runtime: Runtime) -> Iterator[str]:
    """Nobody goes back further than the members may be apart, whatever some of them promise."""
    gate = run.lived[id]._membership.gate if run.lived[id]._membership else None
    if gate is None:
        return
    run.reached[id, gate.view.number] = max(run.reached.get((id, gate.view.number), -1), gate.started)
    before = run.reached.get((id, gate.view.number - 1), -1)
    if not gate.view.resets_member(id) or id in dict(gate.view.entrants):
        return
    if before - (gate.view.first - 1) > STALENESS_BOUND + len(gate.view.members) + 1:
        yield f"{id} has begun round {before}, and goes back to round {gate.view.first - 1}"


def of_archive(run: "Simulation", id: str) -> Iterator[str]:
    """Who has finished keeps the rounds that it was to keep, whole, and no more."""
    if not (keep := run.spec.keep):
        return
    files = Checkpoints(run.out / id / "checkpoint")
    kept, wanted = files.archive.rounds(), range(keep.every, run.spec.rounds + 1, keep.every)[-keep.last :]
    if lacking := {*wanted} - {*kept, *files.rounds()}:
        yield f"{id} has not kept rounds {lacking}"
    if len(kept) > keep.last or any(map(files.archive.verify, kept)):
        yield f"{id} keeps rounds {kept}, one of them damaged or too many"


def of_stores(run: "Simulation", id: str, runtime: Runtime) -> Iterator[str]:
    """Nothing is kept for longer than somebody may ask for it."""
    network = runtime.network
    for peer, link in network.links.items():
        rounds = {frame.key.round for frame in link.outbox._frames}
        if len(rounds) > STALENESS_BOUND + 2:
            yield f"{id} keeps rounds {rounds} for {peer}"
    for peer, inbox in network._receiver.inboxes.items():
        rounds = {key.round for key in inbox.messages}
        if len(rounds) > STALENESS_BOUND + 2:
            yield f"{id} has rounds {rounds} of {peer}"
    files = [*(run.out / id / "checkpoint").glob("*")]
    if len(files) > 3 * (STALENESS_BOUND + 4):
        yield f"{id} has {len(files)} files of checkpoints"

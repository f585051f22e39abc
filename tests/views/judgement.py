"""What must be so in every simulated world; each function gives what is wrong."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from machine import Machine

from peer.views.statements import Decision, Evidence, InvalidError, Vote
from peer.views.view import View, ViewChain

if TYPE_CHECKING:
    from world import World


def joined(evidence: Iterable[Evidence]) -> Evidence:
    """All of it as one."""
    those = [*evidence]
    return Evidence(
        tuple(one for all in those for one in all.consents), tuple(one for all in those for one in all.guilt)
    )


def of_view(world: "World", decision: Decision) -> Iterator[str]:
    """It was decided, as an honest member knows for the first time."""
    view, before = decision.view, world.decided[decision.view.number - 1]
    court = world.honest[0].acceptor.verifier
    try:
        court.check_decision(before, decision)
    except InvalidError as error:
        yield f"{view} cannot be proved: {error}"
    vote = Vote("commit", view.number, decision.ballot, court.digest(before, view))
    voters = world.committed.get(vote, set()) | world.liars
    if not before.is_quorum(voters, world.faulty):
        yield f"{view} was decided by {voters} of {before} alone"
    yield from of_votes(world, before, view)
    if view.members != tuple(id for id in world.ids if id in view.members) or not view.members:
        yield f"{view} is not in the order of the spec"
    if len(view.members) < world.rules.min_members:
        yield f"{view} has too few members"
    for machine in world.honest:
        yield from of_life(world, machine)
    again = dict(view.entrants).keys() & {*before.members}
    if view.planned and view.first > before.first and again:
        yield f"{view} admits {again}, without whom the view before cannot be played to its end"
    for one in [world.machines[id] for id in before.members if id not in world.liars]:
        if view.planned and one.lives == view.number - 1 and one.started >= view.first:
            yield f"{one.id} has begun round {one.started}, but {view} is planned"
        goes = one.id in view.expelled or (one.id, view.number) in world.leaving | world.refusing
        if world.signed and one.id in world.reliable and one.id not in view.members and not goes:
            yield f"{one.id} answers all and is left out by {view}"


def of_votes(world: "World", before: View, view: View) -> Iterator[str]:
    """Check the expulsions in a view."""
    new = {*view.expelled} - {*before.expelled} - world.liars
    if new and not (new == {world.accused} and before.is_quorum(world.consenting | world.liars, world.faulty)):
        yield f"{new} voted out by {world.consenting} of {before} alone"
    if {*view.expelled} & {*view.members} or not {*before.expelled} <= {*view.expelled}:
        yield f"{view} takes in who was voted out, or forgets it"
    if new & {*before.members} and view.planned:
        yield f"{view} waits for who is voted out"


def of_life(world: "World", machine: Machine) -> Iterator[str]:
    """Whether it can go on as it is to, by all that was decided."""
    if machine.lives == max(world.decided) or machine not in world.honest:
        return
    chain = ViewChain([world.decided[number] for number in sorted(world.decided)])
    if not chain.is_over(machine.lives, machine.id) and machine.started >= chain.since(machine.lives)[0].first:
        yield f"{machine.id} has begun round {machine.started} of a planned view that is over then"
    view = chain.after(machine.lives, machine.id)
    if not view:
        return
    entrants = dict(view.entrants)
    if machine.id in entrants:
        if entrants[machine.id] not in {-1, *machine.kept} or entrants[machine.id] >= max(view.first, 1):
            yield f"{machine.id} has no private state with which it could be taken in by {view}"
    elif not view.planned and view.first and view.first - 1 not in machine.kept:
        yield f"{machine.id} has {sorted(machine.kept)} only, but is to go on in {view}"


def of_memory(world: "World", machine: Machine) -> Iterator[str]:
    """Whether it knows after a restart to what it has consented."""
    known = {*machine.acceptor.consented, *machine.chain.current.expelled}
    if machine.id in world.consenting and machine.id not in world.liars and world.accused not in known:
        yield f"{machine.id} has forgotten that it has consented"


def of_size(world: "World", machine: Machine) -> Iterator[str]:
    """Whether others can make it keep ever more."""
    memory = machine.memory
    most = len(world.ids)
    if lock := machine.acceptor.slot.lock:
        try:
            machine.acceptor.verifier.check_evidence(machine.chain.current, lock.evidence)
        except InvalidError as error:
            yield f"{machine.id} keeps evidence of which nothing is proved: {error}"
    if len(memory.guilt) > most or len(memory.consents) > most or len(memory.decisions) > len(world.decided):
        yield f"{machine.id} keeps too much"

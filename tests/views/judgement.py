"""What must be so in every simulated world; each function gives what is wrong."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from machine import Machine

from peer.views.view import Chain, View

if TYPE_CHECKING:
    from world import World


def of_view(world: "World", view: View, voters: set[str]) -> Iterator[str]:
    """A view was decided by those."""
    if (known := world.decided[view.number]) != view:
        yield f"two views of one number: {known} and {view}"
        return
    before = world.decided[view.number - 1].members
    voters &= set(before)
    if 2 * len(voters) < len(before) or (2 * len(voters) == len(before) and before[0] not in voters):
        yield f"{view} was decided by {voters} of {before} alone"
    yield from _of_votes(world, world.decided[view.number - 1], view)
    if view.members != tuple(id for id in world.ids if id in view.members) or not view.members:
        yield f"{view} is not in the order of the spec"
    for machine in world.machines.values():
        yield from of_life(world, machine)
    for one in [world.machines[id] for id in before]:
        if view.planned and one.lives == view.number - 1 and one.started >= view.first:
            yield f"{one.id} has begun round {one.started}, but {view} is planned"


def _of_votes(world: "World", before: View, view: View) -> Iterator[str]:
    """Who was voted out in it, and before."""
    new = {*view.expelled} - {*before.expelled}
    if new and not before.is_quorum(world.consenting):
        yield f"{new} voted out by {world.consenting} of {before} alone"
    if {*view.expelled} & {*view.members} or not {*before.expelled} <= {*view.expelled}:
        yield f"{view} takes in who was voted out, or forgets it"
    if new & {*before.members} and view.planned:
        yield f"{view} waits for who is voted out"


def of_life(world: "World", machine: Machine) -> Iterator[str]:
    """Whether it can go on as it is to, by all that was decided."""
    if machine.lives == max(world.decided):
        return
    chain = Chain([world.decided[number] for number in sorted(world.decided)])
    if not chain.is_over(machine.lives, machine.id) and machine.started >= chain.since(machine.lives)[0].first:
        yield f"{machine.id} has begun round {machine.started} of a planned view that is over then"
    view = chain.after(machine.lives, machine.id)
    if not view:
        return
    entrants = dict(view.entrants)
    if machine.id in entrants:
        if entrants[machine.id] not in {-1, *machine.kept} or entrants[machine.id] >= view.first:
            yield f"{machine.id} has no private state with which it could be taken in by {view}"
    elif not view.planned and view.first and view.first - 1 not in machine.kept:
        yield f"{machine.id} has {sorted(machine.kept)} only, but is to go on in {view}"


def of_memory(world: "World", machine: Machine) -> Iterator[str]:
    """Whether it knows after a restart to what it has consented."""
    known = {*machine.acceptor.consents, *machine.chain.current.expelled}
    if machine.id in world.consenting and world.accused not in known:
        yield f"{machine.id} has forgotten that it has consented"

"""What `peer.resources()` gives where it is not measured: what the settings say, or what an earlier run recorded."""

from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path

from peer.errors import InputError
from peer.protocols.peer import Resources
from peer.reading import lines, open_plain
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig
from peer.telemetry.events import Note, RoundDone, read_event
from peer.telemetry.results import EVENTS, objects

NOTED = "resources"
"""The note of each round in which they were asked for: cores, GiB, then the rate to each member."""


def given(config: PeerConfig, spec: Spec) -> Callable[[int], Resources] | None:
    """A peer's resources by round, or None if they are to be measured; InputError where they are not there."""
    if config.machine and spec.protocol.resources_from != "pinned":
        raise InputError(
            f"`{spec.protocol.name}` does not go by the `machine` of `{config.id}` as it is set; leave it out"
        )
    match spec.protocol.resources_from:
        case "measured":
            return None
        case "pinned":
            pinned = _pinned(config, spec)
            return lambda round: pinned
        case "replay":
            recorded = _recorded(config, spec)
            return lambda round: _of_round(recorded, round, config.id)


def _of_round(recorded: Mapping[int, Resources], round: int, id: str) -> Resources:
    if round not in recorded:
        raise InputError(f"{id} asks for its resources in round {round}, and a recording has those of rounds 1 on")
    return recorded[round]


def as_noted(resources: Resources) -> list[float]:
    """In the order in which `_resources` reads them."""
    return [resources.cpus, resources.memory, *resources.rates.values()]


def _pinned(config: PeerConfig, spec: Spec) -> Resources:
    machine = config.machine or (spec.machines or {}).get(config.id)
    if machine is None:
        raise InputError(
            f"`{spec.protocol.name}` goes by pinned resources, and `{config.id}` has none; write `machine: {{cores: 4, "
            f"memory: 8}}` into its file, or `machines: {{{config.id}: {{cores: 4, memory: 8}}}}` into the federation's"
        )
    return Resources(machine.cores, machine.memory, dict.fromkeys(spec.ids, 0.0))


def _recorded(config: PeerConfig, spec: Spec) -> dict[int, Resources]:
    if spec.recording is None:
        raise InputError(
            f"`{spec.protocol.name}` replays resources, and no run is named; write `recording: DIR`, the directory of "
            "a run whose resources were measured"
        )
    events = spec.recording / config.id / EVENTS
    if config.out and events.parent.resolve() == config.out.resolve():
        raise InputError(f"{spec.recording}: is where this run itself writes; choose another --out (`out`)")
    notes = _notes(events)
    wanted = range(1, spec.rounds + 1)
    if lacking := next((round for round in wanted if round not in notes), None):
        raise InputError(
            f"{events}: no resources of {config.id} were recorded in round {lacking}; record a run with at least "
            f"{spec.rounds} rounds of a protocol that asks for them"
        )
    return {round: _resources(notes[round], spec, events) for round in wanted}


def _notes(events: Path) -> Mapping[int, Note]:
    found = dict[int, Note]()
    try:
        with open_plain(events) as file:
            for line in lines(file):
                for event in map(read_event, objects([line])):
                    if isinstance(event, RoundDone) and NOTED in event.notes:
                        found[event.round] = event.notes[NOTED]
    except OSError as error:
        raise InputError(
            f"{events}: cannot be read ({error.strerror}); `recording` is the directory of a run of these peers"
        ) from None
    return found


def _resources(note: Note, spec: Spec, events: Path) -> Resources:
    numbers = [one for one in note if one is not None] if isinstance(note, list) else []
    if len(numbers) != 2 + len(spec.ids):
        raise InputError(f"{events}: was not recorded by a federation of {len(spec.ids)} peers; name another recording")
    if wrong := [one for one in numbers if not (isfinite(one) and one >= 0)]:
        raise InputError(f"{events}: says that a resource was {wrong[0]:g}; name another recording")
    cores, memory, *rates = numbers
    return Resources(cores, memory, dict(zip(spec.ids, rates, strict=True)))

"""`dfl-launch rewind`: write into federation.yaml that all peers go back to an earlier round.

Each peer does so as it starts with that file (peer/runtime/backup.py); here it is only found out whether all can.
"""

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from launcher.command_spec import resolved
from launcher.output import Output
from launcher.supervision.run_directory import RunDirectory
from peer.errors import InputError
from peer.files import sole_use, write_atomically
from peer.runtime.backup import pending_rewind, rewind_entry, rounds_in_words, valid_rounds
from peer.spec.blocks import Rewind
from peer.spec.document import Document
from peer.spec.federation import Spec
from peer.spec.recordings import RUN, RunFormat, RunIdentity, known_views
from peer.views.decision import Memory


def rewind_command(arguments: argparse.Namespace, output: Output) -> int:
    if arguments.federation.is_dir():
        raise InputError(f"{arguments.federation}: is a directory; give the federation's file, which is to be changed")
    spec = resolved(arguments)
    directory = RunDirectory.chosen(spec, arguments.out)
    places = {id: directory.files.out(id) for id in spec.ids}
    if not any((place / RUN).exists() for place in places.values()):
        raise InputError(
            f"{directory.path}: has no <id>/run.json of a peer; give the run's directory as --out, or, where the peers "
            "are on other machines, write the round under `rewinds` yourself (`dfl-peer --check` shows which rounds a "
            "peer holds)"
        )
    with closing(directory):
        directory.claim()
        for place in filter(Path.exists, places.values()):
            with sole_use(place):
                pass  # a peer that was started by hand may still run
        for id, place in places.items():
            with suppress(FileNotFoundError):
                RunFormat.check(place)
                if (owner := RunIdentity.read(place).id) != id:
                    raise InputError(f"{place}: belongs to peer `{owner}`; put the directory of `{id}` in its place")
        known = {id: known_views(place) for id, place in places.items()}
        most = max(known.values(), key=lambda memory: len(memory.decisions))
        held = {id: valid_rounds(place, replace(most, entered=known[id].entered)) for id, place in places.items()}
        entry = _newest_entry(spec, most, held, arguments.to)
        changed = spec.model_copy(update={"rewinds": (*(spec.rewinds or ()), entry)})
        for place in places.values():
            pending_rewind(place, changed)
        line = f"rewinds: {json.dumps(changed.plain_rewinds)}"
        _write_line(arguments.federation, line, changed.plain_rewinds)
    output.say(f"`{line}` is now in {arguments.federation}: with it, all peers go back to round {entry.round}")
    return 0


def _newest_entry(spec: Spec, known: Memory, held: Mapping[str, Sequence[int]], wanted: int | None) -> Rewind:
    """Return the entry for the wanted round, or for the newest one that all hold who were members then; InputError if
    one does not hold it."""
    for round in sorted({*chain(*held.values())}, reverse=True) if wanted is None else [wanted]:
        entry = rewind_entry(spec, known, round)
        members = entry.members or spec.ids
        if len(members) >= spec.protocol.least_members(len(spec.ids)) and all(round in held[id] for id in members):
            return entry
    what = f"{'no round is' if wanted is None else f'round {wanted} is not'} held by all peers that played it"
    each = "; ".join(f"{id} holds {rounds_in_words(rounds)}" for id, rounds in held.items())
    without = ", or leave them out by hand (docs/backups.md)" if spec.on_loss == "bypass" else ""
    raise InputError(f"{what}: {each}; choose another --to, or put backups in the place of those that lack it{without}")


def _write_line(path: Path, line: str, rewinds: list[Any] | None) -> None:
    """Set `rewinds` in a file of settings, of which all else stays as it is; InputError if that takes a person."""
    text = path.read_text()
    changed, count = re.subn(r"(?m)^rewinds:.*$", line, text)
    if not count:
        changed = f"{text.rstrip()}\n{line}\n"
    with suppress(InputError):
        if Document.parse(changed, path).content.get("rewinds") == rewinds:
            write_atomically(path, changed.encode())
            return
    raise InputError(f"{path}: cannot be changed here; write `{line}` into it")

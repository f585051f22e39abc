"""`dfl-launch rewind`: write into federation.yaml that all peers go back to an earlier round.

Each peer does so as it starts with that file (peer/runtime/backup.py); here it is only found out whether all can.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from launcher.command_spec import resolved
from launcher.output import Output
from launcher.supervision.run_directory import RunDirectory
from peer.errors import InputError
from peer.files import sole_use, write_atomically
from peer.runtime.backup import pending_rewind, rounds_in_words, sealed_rounds
from peer.spec.document import Document
from peer.spec.recordings import RUN


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
        round = _common_round({id: sealed_rounds(place) for id, place in places.items()}, arguments.to)
        rewinds = (*(spec.rewinds or ()), round)
        for place in places.values():
            pending_rewind(place, spec.model_copy(update={"rewinds": rewinds}))
        _write_key(arguments.federation, rewinds)
    output.say(f"`rewinds: {[*rewinds]}` is now in {arguments.federation}: with it, all peers go back to round {round}")
    return 0


def _common_round(held: Mapping[str, Sequence[int]], wanted: int | None) -> int:
    """Return the wanted round, or the newest one that all hold; InputError if one does not hold it."""
    common = set.intersection(*({*rounds} for rounds in held.values()))
    round = max(common, default=None) if wanted is None else wanted
    if round is None or round not in common:
        what = "no round is held by all peers" if wanted is None else f"round {wanted} is not held by all peers"
        each = "; ".join(f"{id} holds {rounds_in_words(rounds)}" for id, rounds in held.items())
        raise InputError(f"{what}: {each}; choose another --to, or put backups in the place of those that lack it")
    return round


def _write_key(path: Path, rewinds: Sequence[int]) -> None:
    """Set `rewinds` in a file of settings, of which all else stays as it is; InputError if that takes a person."""
    line, text = f"rewinds: {[*rewinds]}", path.read_text()
    changed, count = re.subn(r"(?m)^rewinds:.*$", line, text)
    if not count:
        changed = f"{text.rstrip()}\n{line}\n"
    with suppress(InputError):
        if Document.parse(changed, path).content.get("rewinds") == [*rewinds]:
            write_atomically(path, changed.encode())
            return
    raise InputError(f"{path}: cannot be changed here; write `{line}` into it")

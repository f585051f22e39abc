"""How all peers go back to an earlier round, and copies of a peer's directory from which they can.

A *rewind* is agreed on in federation.yaml: `rewinds` lists the rounds to which all have gone back, and handshakes
compare it. So nobody decides it for another: each operator starts the own peer with the new file, and a peer that has
not gone back is refused and told why. The peer goes back as it starts, in steps that a crash repeats: the checkpoint of
that round is brought from the archive; everything later is removed; run.json records the rewind.

Before members have changed, views begin anew: promises are removed, too, and as the round is part of what names the
federation in signatures, no vote from before counts afterwards. Once they have changed, the entry sets the next view,
which takes no votes (`Verifier.rewind_after`): its members go back to that round, others may ask to be admitted, and
what was signed for views of its number or later does not count (`Keyring`).

A *backup* is made of a peer that runs or has stopped: run.json, sealed checkpoints, decided views, and the lines of its
events and audit. What the peer has drawn or promised since is not in it, so a peer never continues from a backup alone,
which could send other values than it has sent before (rule R1): it is only good for a rewind.
"""

import json
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from math import inf
from pathlib import Path

from peer.errors import FailedError, InputError
from peer.files import lines, open_plain, private, sync, write_atomically, write_failure
from peer.runtime.checkpoints import Checkpoints, Journal
from peer.spec.blocks import Rewind
from peer.spec.federation import Spec
from peer.spec.recordings import RUN, VIEWS, RunFormat, RunIdentity, known_views
from peer.telemetry.results import AUDIT, EVENTS, RESULT
from peer.views.decision import Memory, Slot
from peer.views.statements import canonical
from peer.views.view import View, view_rounds

ATTEMPTS = 5
"""How often a checkpoint is copied that a running peer replaces meanwhile."""


def sealed_rounds(out: Path) -> list[int]:
    """Return the rounds whose checkpoints a peer's directory holds, the archive's too, in ascending order."""
    files = Checkpoints(out / "checkpoint")
    return sorted({*files.rounds(), *files.archive.rounds()})


def rounds_in_words(rounds: Sequence[int]) -> str:
    """Return rounds as text, such as "rounds 500, 1499, 1500"."""
    listed = ", ".join(map(str, rounds))
    return f"round{'s' * (len(rounds) > 1)} {listed}" if rounds else "no round"


def valid_rounds(out: Path, known: Memory) -> list[int]:
    """Return those of a peer's sealed rounds that no view has made void of which it knows."""
    void = min((one.view.first for one in known.decisions[known.entered :]), default=inf)
    return [round for round in sealed_rounds(out) if round < void]


def rewind_entry(spec: Spec, known: Memory, round: int) -> Rewind:
    """Return the entry of `rewinds` by which all who were members in that round go back to it."""
    if not (views := [View(0, spec.ids, first=0), *(one.view for one in known.decisions)])[1:]:
        return Rewind(round=round)
    members = next(span.view.members for span in view_rounds(views, max(spec.rounds, round)) if round in span.rounds)
    if not (back := [id for id in members if id not in views[-1].expelled]):
        raise InputError(f"all members of round {round} were voted out; choose another round")
    return Rewind(round=round, view=len(views), members=back)


def _is_possible(entry: Rewind, known: Memory) -> bool:
    """Return whether a rewind sets a later view than any that was decided, and takes nobody in who was voted out."""
    if not known.decisions:
        return True
    return (entry.view or 0) > len(known.decisions) and not {*known.decisions[-1].view.expelled} & {*entry.members}


def pending_rewind(out: Path, spec: Spec) -> int | None:
    """Return the round to which the peer with this directory is still to go back, if any.

    Raises InputError if it cannot go there, and OSError or ValueError if its run.json cannot be read.
    """
    wanted, rounds = spec.plain_rewinds or [], spec.rewound_rounds
    try:
        RunFormat.check(out)
        identity = RunIdentity.read(out)
    except FileNotFoundError:
        if wanted and spec.on_loss != "bypass":  # with bypass, the others admit a peer that has nothing
            raise InputError(
                f"{out}: holds no run, and `rewinds` takes one back to round {rounds[-1]}; put a backup there, or "
                "remove `rewinds` to begin anew"
            ) from None
        return None
    done, missed = identity.rewinds, wanted[len(identity.rewinds) :]
    if done != wanted[: len(done)]:
        anew = f", or remove {out}: then the others admit this peer anew" if spec.on_loss == "bypass" else ""
        raise InputError(
            f"{out}: went back by {json.dumps(done)[1:-1]}, with which `rewinds` has to begin; write it there{anew}"
        )
    if not missed:
        if identity.backup:
            raise InputError(
                f"{out}: is a backup with {rounds_in_words(sealed_rounds(out))}, and a peer does not continue from it "
                "alone; have all peers go back to one of them by `rewinds` (`dfl-launch rewind`)"
            )
        return None
    if (round := rounds[-1]) > (least := min(rounds[len(done) :])):
        raise InputError(f"{out}: has missed the rewind to round {least}; go back there or further")
    known, (*missed_before, entry) = known_views(out), (spec.rewinds or ())[len(done) :]
    right = entry if _is_possible(entry, known) else rewind_entry(spec, known, round)
    is_member = not right.members or identity.id in right.members
    if is_member and round not in (there := valid_rounds(out, known)):
        raise InputError(
            f"{out}: cannot go back to round {round}, as it holds {rounds_in_words(there)}; choose a round that all "
            "peers hold, or put a backup with that round in its place"
        )
    if right is not entry:
        listed = spec.model_copy(update={"rewinds": (right,)}).plain_rewinds
        raise InputError(
            f"{out}: the members have changed; to go back to round {round}, give `rewinds` {json.dumps(listed)[1:-1]} "
            f"as its last entry, not {json.dumps(missed[-1])}"
        )
    if not all(_is_possible(one, known) for one in missed_before):
        raise InputError(
            f"{out}: knows views that do not go with an entry of `rewinds` before {json.dumps(missed[-1])}; remove "
            f"that entry if no peer has started with it, or else {out}: then the others admit this peer anew"
        )
    return round


def rewind(out: Path, id: str, spec: Spec) -> int | None:
    """Let the peer with this directory, its own, go back, if it is still to do so; return the round, also where an
    earlier process has gone there and not told so. Raises as `pending_rewind`, and OSError if the disk is full."""
    if (round := pending_rewind(out, spec)) is None:
        return RunIdentity.read(out).rewound if (out / RUN).exists() else None
    files, entry = Checkpoints(out / "checkpoint"), (spec.rewinds or ())[-1]
    if entry.view is None or id in entry.members:
        source = next((one for one in (files, files.archive) if one.verify(round) is None), None)
        if source is None:
            raise InputError(f"{out}: its checkpoint of round {round} is damaged; choose another, or a backup")
        if source is not files:
            source.copy(round, files)
    for one in (files, files.archive):
        one.drop_after(round)
    Journal(out / "journal").drop_after(round)
    if entry.view is None:
        # Nobody has a later round on disk any more.
        facts = files.facts(round)
        durable = {peer: min(at, round) for peer, at in facts["network"]["durable"].items()}
        files.replace_facts(round, facts | {"network": facts["network"] | {"durable": durable}})
    for name in (RESULT, "complete", *([VIEWS] if entry.view is None else [])):
        (out / name).unlink(missing_ok=True)
    sync(out)
    RunIdentity.from_spec(spec, id).model_copy(update={"rewound": round}).write(out)
    sync(out)
    return round


def backup(out: Path, to: Path, round: int | None = None) -> Sequence[int]:
    """Copy all sealed rounds of a peer, or only that one, to a new directory or a new `.tar`; return the rounds.

    `to` is whole or not there. Raises InputError for a directory that is no peer's or lacks that round, and FailedError
    if the copy cannot be written.
    """
    try:
        RunFormat.check(out)
        identity = RunIdentity.read(out)
    except (OSError, ValueError):
        raise InputError(f"{out}: holds no run of a peer; give the directory that has its run.json") from None
    if to.exists():
        raise InputError(f"{to}: exists already; give another name for the backup")
    if not to.parent.is_dir():
        raise InputError(f"{to.parent}: there is no such directory; create or mount it")
    if to.resolve().is_relative_to(out.resolve()):
        raise InputError(f"{to}: lies in the directory that it is to be a copy of; give a place elsewhere")
    if round is not None and round not in (there := sealed_rounds(out)):
        raise InputError(f"{out}: cannot back up round {round}, as it holds {rounds_in_words(there)}")
    try:
        with private(), tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.") as beside:
            made = Path(beside) / identity.id
            made.mkdir()
            known = known_views(out)  # first: rounds of a view that begins meanwhile count as void then
            copied = _copy_checkpoints(out, made, round)
            for name in (EVENTS, AUDIT):
                with suppress(FileNotFoundError), open_plain(out / name) as file:
                    write_atomically(made / name, b"".join(line + b"\n" for line in lines(file)))
            if known.decisions:
                kept = replace(known, slot=Slot(1), promised=-1)
                write_atomically(made / VIEWS, canonical(asdict(kept)))
            identity.model_copy(update={"backup": True}).write(made)
            sync(made)
            if to.suffix == ".tar":
                packed = Path(beside) / "tar"
                with tarfile.open(packed, "w") as tar:
                    tar.add(made, identity.id)
                sync(packed)
                packed.replace(to)
            else:
                made.replace(to)
            sync(to.parent)
    except OSError as error:
        raise FailedError(write_failure(to, error)) from None
    return copied


def _copy_checkpoints(out: Path, made: Path, round: int | None) -> Sequence[int]:
    """Copy all checkpoints, or that of one round; return the rounds, all of them intact."""
    files, target = Checkpoints(out / "checkpoint"), Checkpoints(made / "checkpoint")
    for _ in range(ATTEMPTS):
        if not (wanted := {*sealed_rounds(out)} if round is None else {round}):
            raise InputError(f"{out}: holds no checkpoint yet; make a backup after the first round")
        # The archive comes last, as a running peer may move a round there meanwhile.
        for at, source in ((at, source) for source in (files, files.archive) for at in sorted(wanted)):
            if at not in target.rounds():
                with suppress(OSError, ValueError, KeyError):  # replaced or removed meanwhile
                    source.copy(at, target)
                if target.verify(at):
                    target.drop([at])
        if not (wanted & {*sealed_rounds(out)}) - {*target.rounds()}:
            break
    if there := target.rounds():
        return there
    raise FailedError(f"{out}: its checkpoint is damaged, or changed while it was copied; try again")

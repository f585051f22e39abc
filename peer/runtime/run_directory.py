"""A peer's directory for one run: `run.json` says which peer and run it belongs to, and only one process uses it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from peer.errors import InputError
from peer.files import make_private, refuse_links, sole_use, sync, unwritable_reason, write_atomically
from peer.runtime.backup import pending_rewind, rewind, rounds_in_words, sealed_rounds
from peer.spec.agreement import differing
from peer.spec.checks import why_not_continued
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig
from peer.spec.recordings import RunFormat, RunIdentity, known_views
from peer.telemetry.results import RESULT


def check_directory(config: PeerConfig, spec: Spec) -> None:
    """Raise InputError for a directory that cannot be written, or that holds the files of another run."""
    if why := unwritable_reason(out := config.directory):
        raise InputError(f"{why}; give another `out`")
    if out.exists():
        with sole_use(out):
            refuse_links(out)
    try:
        RunFormat.check(out)
        _refuse_other_run(RunIdentity.read(out), config, spec)
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        raise InputError(f"{out}/run.json: is not readable; give another `out` or remove {out}") from None
    pending_rewind(out, spec)


def directory_in_words(config: PeerConfig, spec: Spec) -> str:
    """What a start finds in the directory; InputError as by `check_directory`."""
    check_directory(config, spec)
    if not ((out := config.directory) / "run.json").exists():
        return f"{out}: can be written"
    back = pending_rewind(out, spec)
    course = "goes on" if back is None else f"goes back to round {back}"
    return f"{out}: holds this run, which {course}; on disk: {rounds_in_words(sealed_rounds(out))}"


def _refuse_other_run(theirs: RunIdentity, config: PeerConfig, spec: Spec) -> None:
    out = config.directory
    if theirs.id != config.id:
        raise InputError(f"{out}: belongs to peer `{theirs.id}`; give another `out`")
    if obstacle := why_not_continued(spec, differing(spec.agreement.digests, theirs.digests), theirs.rounds):
        raise InputError(f"{out}: holds another run: {obstacle}; give another `out`")
    if spec.on_loss != "bypass" and known_views(out).decisions:
        raise InputError(f"{out}: the members of this run have changed, so `on_loss` has to stay `bypass`")


@contextmanager
def own_directory(config: PeerConfig, spec: Spec) -> Iterator[int | None]:
    """Create the directory, and keep every other process out of it inside the block; yield what `rewind`
    returns, and raise as it does; a new directory that is still empty is removed."""
    new = not (out := config.directory).exists()
    make_private(out)
    try:
        with sole_use(out):
            yield rewind(out, config.id, spec)
    finally:
        if new:
            with suppress(OSError):  # it is not empty
                out.rmdir()


def record_run(out: Path, id: str, spec: Spec) -> None:
    """Note in a peer's own directory which peer and run it belongs to, and the process."""
    _forget_other_result(out, spec)
    RunIdentity.from_spec(spec, id).write(out)
    write_atomically(out / "pid", f"{os.getpid()}\n".encode())
    sync(out)  # or a power cut could bring back a run.json from before a rewind


def _forget_other_result(out: Path, spec: Spec) -> None:
    """Remove a result made with other fine-tuning settings, or none, before run.json claims it for these."""
    try:
        theirs = RunIdentity.read(out).digests.get("finetune")
    except (OSError, ValueError):
        return
    if theirs != spec.agreement.digests.get("finetune"):
        (out / RESULT).unlink(missing_ok=True)

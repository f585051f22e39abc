"""What an engine is: something that runs peers in some place, for the supervisor, which knows no place.

    chosen = engine("docker", {"image": "dfl"})
    chosen.check(run)                       what is wrong is reported before anything is created
    async with chosen.deploy(run) as deployment:
        process = await deployment.start("peer3")
        code = await process.wait()
        await deployment.collect()

The live view and the summary read the run's directory on this machine. So a deployment makes sure that the peers'
events and logs are there while they run (it shares the directory with them, or follows their files), and brings the
rest when it collects.

Below that: what more than one engine needs (a process whose end is reported by its place, a file that grows elsewhere
and is copied here, the name of a container image), and how `--on NAME --option KEY=VALUE` becomes an engine, which is
imported only then.
"""

import asyncio
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import dataclass
from errno import EFBIG
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import Field

from launcher.engines import ENGINES
from launcher.run_files import RunFiles, certificate_files
from peer.errors import FailedError, InputError, suggest
from peer.files import MAX_SETTINGS_BYTES, read_plain, write_atomically
from peer.settings import Settings
from peer.spec.document import Document, scalar, validate
from peer.spec.federation import Spec
from peer.telemetry.results import WANTED, traced

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Run:
    """A federation that is to run."""

    spec: Spec
    """The spec, with the addresses that the peers have where they run."""
    files: RunFiles
    device: str = "auto"
    certs: Path | None = None
    """The directory of `dfl-launch certs`."""
    replaces: bool = False
    """Whether an earlier run in the directory is discarded, so that nothing may be wrong with any peer's data."""
    lock: int = -1
    """A descriptor for peers on this machine to keep open: its lock is held until the last of them has ended."""
    say: Callable[[str], None] = lambda _line: None
    """Prints what the user should know at once, such as a place that cannot be reached for a while."""

    def read_place(self) -> dict[str, Any]:
        """Return what the engine has recorded of where the run is; empty before the first launch. Raises InputError."""
        try:
            written: dict[str, Any] = json.loads(read_plain(self.files.place, MAX_SETTINGS_BYTES))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.files.place}: cannot be read ({error}); restore it, or remove it and begin again with --fresh, "
                "which then does not find what the peers have left elsewhere"
            ) from None
        return written

    def write_place(self, content: Mapping[str, Any]) -> None:
        """Record it for later launches. It identifies the run, so other users cannot read it."""
        write_atomically(self.files.place, json.dumps(content).encode(), permissions=0o600)

    @property
    def wanted(self) -> tuple[str, ...]:
        """A peer's files that are fetched from another machine at the end, as far as they are there.

        Names are known here: no listing of another machine's is relied on.
        """
        spec = self.spec
        return (*WANTED, *(traced(round) for round in range(1, spec.rounds + 1) if spec.trace))


class Process(ABC):
    """One peer, from its start to its end."""

    restarts = 0
    """How often the engine itself has restarted it."""

    @abstractmethod
    async def wait(self) -> int:
        """Return the exit code, -n after signal n. Raises FailedError if the engine has lost track of the peer."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send the signal, unless the peer has ended."""


class FollowedProcess(Process):
    """A process whose end is reported by its place, once: by `end` or by `fail`; later reports are ignored.

    send: called with each signal, until then.
    """

    def __init__(self, send: Callable[[int], None]) -> None:
        self._send = send
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def signal(self, number: int) -> None:
        if not self.ended:
            self._send(number)

    def end(self, code: int) -> None:
        if not self._end.done():
            self._end.set_result(code)

    def fail(self, error: FailedError) -> None:
        if not self._end.done():
            self._end.set_exception(error)
            self._end.exception()  # otherwise asyncio complains where nothing waits

    @property
    def ended(self) -> bool:
        """Whether the end has been reported, or that it cannot be known."""
        return self._end.done()

    @property
    def returncode(self) -> int | None:
        """The exit code; None while the process runs, and where it cannot be known."""
        return self._end.result() if self._end.done() and not self._end.exception() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._end)


class Deployment(ABC):
    """The peers of a run in their place."""

    @abstractmethod
    async def start(self, id: str) -> Process:
        """Start the peer, or take it over if an earlier launch left it running. Raises FailedError if it cannot."""

    def way_on(self, id: str) -> str:
        """How a person resumes a peer that somebody has told to stop."""
        return "to resume it, give this command again once it has ended (Ctrl-C ends it)"

    async def stop_all(self) -> None:
        """Return when no peer runs any more. All have been sent SIGKILL, which may reach a remote place late.

        Where it cannot be known whether they have ended, says so and returns.
        """
        return

    async def collect(self) -> None:
        """Fetch what the peers have written into the run's directory, unless it is there already."""
        return


class Engine(ABC, Generic[S]):
    """A kind of place for peers, as its settings describe it."""

    name: ClassVar[str]
    """The name in `--on NAME`."""
    restarts_peers: ClassVar[bool] = False
    """Whether it restarts a crashed peer by itself; otherwise the supervisor does."""
    outlives_launcher: ClassVar[bool] = False
    """Whether peers keep running without the launcher, for `dfl-launch attach` to take over."""

    def __init__(self, settings: S) -> None:
        self.settings = settings

    def with_addresses(self, spec: Spec) -> Spec:
        """Return the spec with its peers' addresses in this place. Raises InputError if there is no room for them."""
        return spec

    def ahead(self) -> AbstractContextManager[None]:
        """What the engine does for the whole command before the spec is read: torch is imported, but not yet used."""
        return nullcontext()

    @abstractmethod
    def check(self, run: Run) -> None:
        """Raise InputError for anything that would make a peer refuse to start there. Creates nothing."""

    def config(self, run: Run, id: str) -> Mapping[str, object]:
        """Return the peer's config as plain YAML; paths are as the peer sees them, relative to the config."""
        # Without `listen`: addresses stand in the spec alone, and so change for all peers at once.
        config: dict[str, object] = {"federation": "federation.yaml", "id": id, "device": run.device, "out": id}
        if run.certs:
            config["tls"] = {name: str(path) for name, path in certificate_files(run.certs, id).items()}
        return config

    def discard(self, run: Run, running: bool = False) -> str:
        """Remove all that the run's peers have left outside its directory here; return what, or "" if there is nothing.

        running: whether peers that run are ended; else InputError is raised, and nothing is removed. Raises FailedError
        where a place cannot be reached.
        """
        return ""

    @abstractmethod
    def deploy(self, run: Run) -> AbstractAsyncContextManager[Deployment]:
        """Prepare the place, which a stop cancels. After the block no peer that was started in it runs any more.

        With `outlives_launcher` only the launcher's own part ends; the supervisor has ended the peers if it was to.
        """


def shipped(spec: Spec) -> Spec:
    """Return the spec for other machines: the directory of code is one of this machine, unless there is user code."""
    return spec if spec.own_code else spec.model_copy(update={"code": None})


def certificates_beside(id: str) -> dict[str, str]:
    """Return what a peer's `tls` names where its certificate files lie beside its config."""
    return {name: path.name for name, path in certificate_files(Path(), id).items()}


def write_at(path: Path, at: int, data: bytes, limit: int | None = None) -> None:
    """Write what a file elsewhere has from the position `at` on; one that was begun anew there is begun anew here.

    What another machine says of it is not trusted: raises ValueError where something before it would be missing, and
    OSError for a link, or for more than `limit` bytes.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        if not 0 <= at <= os.fstat(descriptor).st_size:
            raise ValueError(f"{path}: there is a gap before byte {at}")
        if limit is not None and at + len(data) > limit:
            raise OSError(EFBIG, f"it has more than {limit:,} bytes", str(path))
        file.truncate(at)
        file.seek(at)
        file.write(data)


def bytes_here(path: Path) -> int:
    """Return where to go on following a file that grows elsewhere."""
    return path.stat().st_size if path.exists() else 0


def as_text(given: object) -> object:
    """Return a whole number as text, as which it was meant: YAML cannot know."""
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else given


_IMAGE_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\])(?::[0-9]+)?"
IMAGE_NAME = (
    rf"^(?:{_IMAGE_HOST}/)?{_IMAGE_PART}(?:/{_IMAGE_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[A-Za-z0-9_+.-]+:[0-9a-fA-F]{32,})?$"
)
"""The grammar of container engines (distribution/reference): [HOST[:PORT]/]PATH[:TAG][@DIGEST]."""

Image = Annotated[str, Field(pattern=IMAGE_NAME, max_length=512)]
IMAGE_WANTED = "the name of an image, such as dfl or registry.example.org/dfl:1"


def is_image(name: str) -> bool:
    return len(name) <= 512 and re.fullmatch(IMAGE_NAME, name) is not None


def engine(name: str, given: Mapping[str, Any]) -> Engine[Any]:
    """Return the engine with these settings. Raises InputError for an unknown setting or a wrong value, and where a
    library of the engine's is not installed."""
    if name not in ENGINES:
        raise InputError(f"unknown engine `{name}`; {suggest(name, [*ENGINES])}")
    try:
        kind = resolve_name(ENGINES[name])
    except ModuleNotFoundError as lacking:
        extra = f"pip install -c constraints.txt 'dfl[{name}]'"
        raise InputError(f"--on {name} needs {lacking.name}; install it with: {extra}") from None
    return kind(checked_settings(kind.Settings, given, f"--on {name}"))  # type: ignore[no-any-return]


def checked_settings(kind: type[S], given: Mapping[str, Any], place: str) -> S:
    """Return the settings. Raises InputError, which names the place where they were given, for wrong ones."""
    if given and not kind.model_fields:
        raise InputError(f"{place}: it has no settings, so there is no `{next(iter(given))}`; leave it out")
    required = (key for key, field in kind.model_fields.items() if field.is_required())
    if lacking := next((key for key in required if key not in given), None):
        raise InputError(f"{place}: `{lacking}` must be chosen; give it with --option {lacking}=...")
    content = dict(given)
    return validate(kind, content, Document(Path(place), content, None), {})


def parsed_options(options: Sequence[str]) -> dict[str, Any]:
    """Return the settings of several `--option KEY=VALUE`; each value is YAML."""
    found = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not key or not equals:
            raise InputError(f"--option {option}: write key=value, such as --option image=dfl")
        try:
            found[key] = value if len(value) == 1 and not value.isalnum() else scalar(value)  # such as decimal=,
        except ValueError as error:
            raise InputError(f"--option {option}: the value is not valid YAML: {error}; put it in quotes") from None
    return found

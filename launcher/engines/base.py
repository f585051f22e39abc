"""What an engine is: something that runs peers in some place, for the supervisor, which knows no place.

    chosen = engine("docker", {"image": "dfl"})
    chosen.check(run)                       what is wrong is said before anything is created
    async with chosen.deploy(run) as deployment:
        process = await deployment.start("peer3")
        code = await process.wait()
        await deployment.collect()

The live view and the summary read the run's directory on this machine. So a deployment sees to it that the peers'
events and logs are there while they run (it shares the directory with them, or follows their files), and brings the
rest when it collects.

Below that: what more than one engine needs to know (the name of a container image, the last event of a peer), and how
`--on NAME --option KEY=VALUE` becomes an engine, which is imported only then.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import Field

from launcher.engines import ENGINES
from launcher.run_files import RunFiles, certificate_files
from peer.errors import InputError, suggest
from peer.files import open_plain
from peer.settings import Settings
from peer.spec.document import Document, scalar, validate
from peer.spec.federation import Spec
from peer.telemetry.events import Event, read_events

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Run:
    """A federation that is to run."""

    spec: Spec
    """With the addresses that the peers have where they run."""
    files: RunFiles
    device: str = "auto"
    certs: Path | None = None
    """The directory of `dfl-launch certs`."""
    lock: int = -1
    """An open file whose lock is held as long as a process of this machine has it open; for peers that are such."""
    say: Callable[[str], None] = lambda _line: None
    """Told what a person should know at once, such as a place that cannot be reached for a while."""


class Process(ABC):
    """One peer, from its start to its end."""

    @property
    def restarts(self) -> int:
        """How often the engine itself has started it again."""
        return 0

    @abstractmethod
    async def wait(self) -> int:
        """The exit code, -n after signal n. FailedError when the engine has lost sight of it."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Sends the signal, unless the peer has ended."""


class Deployment(ABC):
    """The peers of a run in their place."""

    @abstractmethod
    async def start(self, id: str) -> Process:
        """Starts the peer, or takes it up where an earlier launch has left it running. FailedError if it cannot."""

    async def end(self) -> None:
        """Returns when no peer runs any more: all that did have been sent SIGKILL, which not every place hears at once.

        Says so where that cannot be known.
        """
        return

    async def collect(self) -> None:
        """Brings what the peers have written into the run's directory, unless it is there already."""
        return


class Engine(ABC, Generic[S]):
    """A place for peers, as its settings describe it."""

    name: ClassVar[str]
    """As `--on` has it."""
    restarts_peers: ClassVar[bool] = False
    """Whether it starts a peer that crashed again by itself; else the supervisor does."""
    outlives_launcher: ClassVar[bool] = False
    """Whether peers go on when the launcher is gone, for `dfl-launch attach` to take them up."""

    def __init__(self, settings: S) -> None:
        self.settings = settings

    def place(self, spec: Spec) -> Spec:
        """The spec with the addresses that its peers have in this place. InputError where there is no room for them."""
        return spec

    @abstractmethod
    def check(self, run: Run) -> None:
        """InputError for what would make a peer refuse to start there. Creates nothing."""

    def config(self, run: Run, id: str) -> Mapping[str, object]:
        """What stands in the peer's config, as plain YAML; paths are as the peer sees them, relative to the config."""
        # Without `listen`: where peers are reached stands in the spec alone, and changes for all of them at once.
        config: dict[str, object] = {"federation": "federation.yaml", "id": id, "device": run.device, "out": id}
        if run.certs:
            config["tls"] = {name: str(path) for name, path in certificate_files(run.certs, id).items()}
        return config

    def clear(self, run: Run) -> None:
        """Ends peers that an earlier launch has left running there, before the files of their run are discarded."""
        return

    @abstractmethod
    def deploy(self, run: Run) -> AbstractAsyncContextManager[Deployment]:
        """Prepares the place. At the end of the block no peer that was started in it runs any more.

        With `outlives_launcher`, what ends is the launcher's own part; the supervisor has ended the peers if it was to.
        """


LAST_EVENT_BYTES = 16384
"""Bytes at the end of the events that hold the last one."""


def last_event(path: Path) -> Event | None:
    """The last of a peer's events; None where it cannot be read."""
    try:
        with open_plain(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_EVENT_BYTES))
            lines = file.read(LAST_EVENT_BYTES).splitlines()
    except OSError:
        return None
    return next(read_events(lines[-1:]), None)


_IMAGE_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:.]+\])(?::[0-9]+)?"
IMAGE_NAME = (
    rf"^(?:{_IMAGE_HOST}/)?{_IMAGE_PART}(?:/{_IMAGE_PART})*"
    r"(?::\w[\w.-]{0,127})?(?:@[A-Za-z0-9_+.-]+:[0-9a-fA-F]{32,})?$"
)
"""As engines and clusters read it (distribution/reference): [HOST[:PORT]/]PATH[:TAG][@DIGEST]."""

Image = Annotated[str, Field(pattern=IMAGE_NAME, max_length=512)]
IMAGE_WANTED = "the name of an image, such as dfl or registry.example.org/dfl:1"


def is_image(name: str) -> bool:
    return len(name) <= 512 and re.fullmatch(IMAGE_NAME, name, re.ASCII) is not None


def engine(name: str, given: Mapping[str, Any]) -> Engine[Any]:
    """The engine with these settings; InputError names what it does not have or what is wrong."""
    if name not in ENGINES:
        raise InputError(f"unknown engine `{name}`; {suggest(name, [*ENGINES])}")
    module, _, attribute = ENGINES[name].partition(":")
    kind = getattr(import_module(module), attribute)
    return kind(checked_settings(kind.Settings, given, f"--on {name}"))  # type: ignore[no-any-return]


def checked_settings(kind: type[S], given: Mapping[str, Any], place: str) -> S:
    """The settings; InputError, which names the place where they are given, for what is wrong."""
    if given and not kind.model_fields:
        raise InputError(f"{place}: it has no settings, so there is no `{next(iter(given))}`; leave it out")
    required = (key for key, field in kind.model_fields.items() if field.is_required())
    if lacking := next((key for key in required if key not in given), None):
        raise InputError(f"{place}: `{lacking}` must be chosen; give it with --option {lacking}=...")
    content = dict(given)
    return validate(kind, content, Document(Path(place), content, None), {})


def parsed_options(options: Sequence[str]) -> dict[str, Any]:
    """What `--option KEY=VALUE` says; the value is YAML."""
    found = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not key or not equals:
            raise InputError(f"--option {option}: write key=value, such as --option image=dfl")
        try:
            found[key] = scalar(value)
        except ValueError as error:
            raise InputError(f"--option {option}: the value is not valid YAML: {error}; put it in quotes") from None
    return found

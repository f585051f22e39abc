"""What an engine is: something that runs peers in some place, for the supervisor, which knows no place.

    engine.check(run)                       what is wrong is said before anything is created
    async with engine.deploy(run) as deployment:
        process = await deployment.start("peer3")
        code = await process.wait()
        await deployment.collect()

The live view and the summary read the run's directory on this machine. So a deployment sees to it that the peers'
events and logs are there while they run (it shares the directory with them, or follows their files), and brings the
rest when it collects.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from launcher.certificate_files import certificate_files
from launcher.run_files import RunFiles
from peer.settings import Settings
from peer.spec.federation import Spec

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

"""What can be chosen about the containers of a run."""

from ipaddress import IPv4Network
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from launcher.engines.image import WANTED, Image
from peer.settings import Settings, Wanted


def _size(given: Any) -> Any:
    """As the engine writes it; a number is bytes."""
    number = isinstance(given, int) and not isinstance(given, bool)
    return str(given).lower() if number or isinstance(given, str) else given


def _texts(given: Any) -> Any:
    """GPUs may be listed by their numbers, which YAML takes for numbers."""
    return tuple(str(one) if type(one) is int else one for one in given) if isinstance(given, list) else given


Memory = Annotated[str, Field(pattern=r"^[1-9][0-9]*[bkmg]?$"), BeforeValidator(_size)]
Gpus = Annotated[
    Annotated[int, Field(ge=1)] | Literal["all"] | Annotated[tuple[str, ...], Field(min_length=1)],
    BeforeValidator(_texts),
]


class DockerSettings(Settings):
    """Settings of `--on docker` and of `dfl-launch compose`."""

    image: Annotated[Image, Wanted(WANTED)] = "dfl"
    """The image of the peers; see deploy/Dockerfile."""
    memory: Annotated[Memory | None, Wanted("bytes, or a number with k, m or g, such as 800m or 4g")] = None
    """The most memory a peer may have: bytes, or with k, m or g. Not given: the machine's."""
    cpus: Annotated[
        Annotated[float, Field(gt=0, le=10_000)] | None, Wanted("a number of cores above 0, such as 1.5")
    ] = None
    """Cores that a peer may keep busy. Not given: the machine's."""
    gpus: Annotated[Gpus | None, Wanted("all, a number from 1 on, or a list such as [0, 1]")] = None
    """GPUs that every peer sees: how many, `all`, or a list of their numbers or UUIDs, for several peers to share."""
    pids: Annotated[int, Field(ge=64), Wanted("a number from 64 on, such as 512")] = 512
    """The most threads and processes a peer may have."""
    restarts: Annotated[int, Field(ge=0, le=1000), Wanted("a number from 0 to 1000, such as 5")] = 5
    """How often the engine starts a peer that crashed again."""
    network: Annotated[str | None, Wanted("the name of a network that is there, as `docker network ls` has it")] = None
    """A network of the engine's that is there already. Not given: a bridge is made for the run, and removed with it."""
    subnet: Annotated[IPv4Network | None, Wanted("a network's first address and its bits, such as 10.99.0.0/24")] = None
    """Addresses of the bridge that is made, such as 10.99.0.0/24. Not given: the engine chooses."""

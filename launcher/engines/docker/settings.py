"""What can be chosen about the containers of a run."""

from ipaddress import IPv4Network
from typing import Annotated, Literal

from pydantic import Field

from peer.settings import Settings

MEMORY = r"^[1-9][0-9]*[bkmg]?$"


class DockerSettings(Settings):
    """Settings of `--on docker` and of `dfl-launch compose`."""

    image: Annotated[str, Field(min_length=1)] = "dfl"
    """The image of the peers; see deploy/Dockerfile."""
    memory: Annotated[str, Field(pattern=MEMORY)] | None = None
    """The most memory a peer may have: bytes, or with k, m or g. Not given: the machine's."""
    cpus: Annotated[float, Field(gt=0, le=10_000)] | None = None
    """Cores that a peer may keep busy. Not given: the machine's."""
    gpus: Annotated[int, Field(ge=1)] | Literal["all"] | tuple[str, ...] | None = None
    """GPUs that every peer sees: how many, `all`, or a list of their numbers or UUIDs, for several peers to share."""
    pids: Annotated[int, Field(ge=64)] = 512
    """The most threads and processes a peer may have."""
    restarts: Annotated[int, Field(ge=0, le=1000)] = 5
    """How often the engine starts a peer that crashed again."""
    network: str | None = None
    """A network of the engine's that is there already. Not given: a bridge is made for the run, and removed with it."""
    subnet: IPv4Network | None = None
    """Addresses of the bridge that is made, such as 10.99.0.0/24. Not given: the engine chooses."""

"""study.yaml: what it may hold."""

from typing import Annotated, Any, Literal

from pydantic import Field

from peer.settings import Settings

Network = Literal["memory", "grpc"]


class StudySettings(Settings):
    """A grid of federations."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.+-]*$")]
    """Names the study, and its directory: letters, digits and `-_.+`."""
    base: dict[str, Any] = Field(default_factory=dict)
    """What all cells have alike: keys of federation.yaml, and `peers` in place of a ring."""
    grid: Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(min_length=1)]
    """The values of each key that varies; a dot reaches into a block, as in `data.partition`. A cell is one value of
    each."""
    exclude: list[Annotated[dict[str, Any], Field(min_length=1)]] = Field(default_factory=list)
    """Cells to leave out: those that have all values of one of these, each as it stands in `grid`."""
    network: Network = "memory"
    """`memory`: a cell is one process. `grpc`: a process a peer, on this machine."""

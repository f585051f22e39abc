"""What can be chosen about a run in a cluster."""

from typing import Annotated, Literal

from pydantic import Field

from launcher.engines.image import WANTED, Image
from peer.settings import Settings, Wanted

QUANTITY = r"^[1-9][0-9]*(\.[0-9]+)?([kMGTP]i?|Ki)?$"
SIZE = "a number with a unit of Kubernetes, such as 500Mi or 4Gi"


class KubernetesSettings(Settings):
    """A pod for every peer, of one Job."""

    image: Annotated[Image, Wanted(WANTED)]
    """The image of the peers, as the cluster's nodes can pull it; see deploy/Dockerfile."""
    context: str | None = None
    """Which of kubectl's contexts. Not given: the one that kubectl uses now."""
    namespace: str | None = None
    """Not given: the context's."""
    storage: Annotated[str, Field(pattern=QUANTITY), Wanted(SIZE)] = "10Gi"
    """Size of the volume for what all peers write while they run."""
    storage_class: str | None = None
    """Its storage class. Not given: the cluster's default."""
    access: Annotated[Literal["ReadWriteMany", "ReadWriteOnce"], Wanted("ReadWriteMany or ReadWriteOnce")] = (
        "ReadWriteMany"
    )
    """ReadWriteOnce will do on a cluster of one node."""
    cpus: Annotated[float, Field(gt=0), Wanted("a number of CPUs above 0, such as 1.5")] = 1
    """CPUs that every peer asks for."""
    memory: Annotated[Annotated[str, Field(pattern=QUANTITY)] | None, Wanted(SIZE)] = None
    """Memory that every peer asks for and may take: 4Gi. Not given: asks for 1Gi, may take 2Gi."""
    gpus: Annotated[int, Field(ge=0), Wanted("a whole number, such as 1")] = 0
    """GPUs of every peer."""
    data: str | None = None
    """A claim that is there already, which all peers see as /data."""
    kubectl: Annotated[str, Field(min_length=1)] = "kubectl"
    """The program, or its path."""

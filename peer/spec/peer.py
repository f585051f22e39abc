"""peer3.yaml: the settings of one peer, and what holds for it where the federation's spec has a say too.

Its data, the subscribers to its events, and whether it may do without certificates: its own file takes precedence over
its entry in the ring, and that over the federation's settings.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from peer.errors import InputError
from peer.learning.data.sources import Source
from peer.network.transport.addresses import is_loopback
from peer.settings import PeerPath, Settings, Wanted
from peer.spec.blocks import Address, AnySource, Id, Machine, Port, TrackerName
from peer.spec.federation import Spec


def _threads(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(given)
    except ValidationError:
        raise ValueError("give a number from 1 to 1024, or auto") from None


Threads = Annotated[Annotated[int, Field(ge=1, le=1024)] | Literal["auto"], WrapValidator(_threads)]


DEVICES = "auto, cpu, cuda or cuda:N; not mps, as Apple's GPUs have no float64, in which losses are summed"
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$"), Wanted(DEVICES)]


class TLS(Settings):
    """This peer's certificates; `{id}` is its id."""

    ca: PeerPath
    """The CA's certificate, PEM."""
    cert: PeerPath
    """This peer's certificate, PEM; its DNS name is the peer's id."""
    key: PeerPath
    """Its private key, PEM."""
    earlier: tuple[PeerPath, ...] = ()
    """Earlier CAs' certificates, which verify past views only, for [a peer that lost its
    directory](views.md#when-certificates-are-renewed)."""


class PeerConfig(Settings):
    """What concerns one peer only."""

    federation: Path
    """The federation's spec, relative to this file."""
    id: Id
    """Its `id` in the ring."""
    listen: Address | None = None
    """host:port to listen at. Default: its ring address's port, same host."""
    device: Device = "auto"
    """auto: a GPU when there is one."""
    out: PeerPath | None = None
    """Directory for this peer's files. Default: its id."""
    threads: Threads = 1
    """Threads for training; auto: all usable cores. Identical bits are promised for 1."""
    gpu_memory: Annotated[float, Field(gt=0, le=1)] | None = None
    """Maximum share of the GPU's memory. Default: no limit."""
    tls: TLS | None = None
    """Certificates; without them identity is a claim and nothing is encrypted."""
    health: Address | None = None
    """host:port for unauthenticated gRPC health checks."""
    metrics: Port | None = None
    """host:port, or a port of 127.0.0.1, for [Prometheus](monitoring.md)."""
    tensorboard: bool | None = None
    """Replaces the federation's."""
    tracker: TrackerName | None = None
    """Replaces the federation's."""
    machine: Machine | None = None
    """For `resources: pinned`."""
    data: AnySource | None = None
    """This peer's own data, a complete block; accuracies are `local`."""

    @property
    def directory(self) -> Path:
        """The directory of this peer's files."""
        return self.out or Path(self.id)


def check_device(device: str, option: str = "--device") -> None:
    """InputError unless that is a device that a peer's config can name."""
    try:
        PeerConfig(federation=Path("federation.yaml"), id="peer0", device=device)
    except ValidationError:
        raise InputError(f"{option} {device}: choose {DEVICES}") from None


def check_plaintext(config: PeerConfig, spec: Spec) -> None:
    """Raises InputError if a peer without certificates would connect beyond loopback and the spec does not allow it."""
    if config.tls:
        return
    if spec.faulty_members:
        raise InputError(
            f"`faulty_members: {spec.faulty_members}` needs certificates, as members sign what they say of views, and "
            f"`{config.id}` has no `tls`; make certificates with `dfl-launch certs`, or write `faulty_members: 0`"
        )
    for address in (config.listen, *spec.addresses.values()):
        if address and not is_loopback(address):
            refuse_plaintext(spec, f"{address} is not on this machine and `{config.id}` has no `tls`")


def refuse_plaintext(spec: Spec, problem: str, option: str = "") -> None:
    """InputError, of this problem, unless peers may speak between machines without certificates.

    option: with which option certificates are given, where it is one.
    """
    if _allows_plaintext(spec):
        return
    allowed = "`plaintext: true` into the spec"
    if spec.on_loss == "bypass":
        allowed = "`plaintext: trusted` into the spec if you trust every process that reaches the ports"
    if option:
        raise InputError(f"{problem}; make certificates with `dfl-launch certs` and give {option}, or write {allowed}")
    raise InputError(f"{problem}; make certificates with `dfl-launch certs`, or write {allowed}")


def in_plaintext(spec: Spec) -> Spec:
    """Return the spec with `plaintext` set, for a private network that no other process can reach."""
    allowed = "trusted" if spec.on_loss == "bypass" else True
    return spec if _allows_plaintext(spec) else spec.model_copy(update={"plaintext": allowed})


def _allows_plaintext(spec: Spec) -> bool:
    return spec.plaintext == "trusted" or (spec.plaintext and spec.on_loss != "bypass")


def peer_data(id: str, spec: Spec, given: Source | None = None) -> Source | None:
    """A peer's own data; None where it takes its part of the federation's.

    given: what its own file says, before which the ring's entry has no say.
    """
    listed = next(member.data for member in spec.ring if member.id == id)
    if own := given or listed:
        return own.of_peer(id)
    if spec.data.names_peers:
        # What is every peer's is done as such.
        return spec.data.of_peer(id).model_copy(update={"drift": (), "standardize": None, "impute": None})
    return None


def subscriber_settings(config: PeerConfig, spec: Spec) -> PeerConfig:
    """The settings of this peer with those of its subscribers from the federation, where it has none of its own."""
    found = {
        "metrics": config.metrics or spec.metrics_addresses.get(config.id),
        "tensorboard": spec.tensorboard if config.tensorboard is None else config.tensorboard,
        "tracker": config.tracker or spec.tracker,
    }
    return config.model_copy(update=found)

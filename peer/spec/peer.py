"""The settings of one peer, and reading both files: what is wrong in them is said with file, line and the way out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from peer.errors import InputError, nearest
from peer.learning.data.sources import SOURCES, source_type
from peer.learning.model.settings import ModelSettings
from peer.learning.model.zoo import MODELS
from peer.learning.tasks import TASKS, task_class
from peer.network.transport.addresses import is_loopback
from peer.peer_paths import PeerPath, of_peer
from peer.plugins import import_from
from peer.protocols.registry import PROTOCOLS, protocol_class
from peer.settings import Settings
from peer.spec.document import Document, put, refuse_nul_in, scalar, validate
from peer.spec.federation import MAX_PEERS, Spec
from peer.spec.known_keys import Location
from peer.spec.member import MAX_PORT, Address, Id, Machine, Port, TrackerName
from peer.spec.named import AnySource
from peer.spec.own_code import own_code
from peer.spec.own_data import own_data

FIRST_PORT = 7700
"""Below 32768, so that no outgoing connection takes a dead peer's port."""


FOR_ALL = ("partition", "validation", "drift", "standardize")
"""Keys of the federation's `data` that are about all peers together, so that data of a peer's own have none of them."""


def _threads(given: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(given)
    except ValidationError:
        raise ValueError("give a number from 1 to 1024, or auto") from None


Threads = Annotated[Annotated[int, Field(ge=1, le=1024)] | Literal["auto"], WrapValidator(_threads)]


class TLS(Settings):
    """Certificates of this peer; the first three files are needed. `{id}` in a path stands for the peer's id."""

    ca: PeerPath
    """The federation's CA certificate, PEM."""
    cert: PeerPath
    """This peer's certificate, PEM; its subject alternative name is the peer's id."""
    key: PeerPath
    """The certificate's private key, PEM."""
    earlier: tuple[PeerPath, ...] = ()
    """CA certificates that were in use before in this run, PEM: good for what was decided on views then, and for no
    connection. Only for a peer that has lost its directory. See [views.md](views.md#when-certificates-are-renewed)."""


class PeerConfig(Settings):
    """peer3.yaml: what concerns one peer only."""

    federation: Path
    """The federation's spec, relative to this file."""
    id: Id
    """Which member of the ring this peer is."""
    listen: Address | None = None
    """host:port to listen at. Not given: the port of its address in the ring, on the same host."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$")] = "auto"
    """auto, cpu, mps, cuda or cuda:N; auto takes a GPU when there is one."""
    out: PeerPath | None = None
    """Directory for this peer's files, relative to this file; `{id}` in it stands for the peer's id. Not given: its
    id."""
    threads: Threads = 1
    """Threads for training; auto takes as many as this process may use cores, by its affinity and the container's
    quota. Same bits in every run are promised for 1."""
    gpu_memory: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the GPU's memory that this peer may take. Not given: as much as is free when it needs it."""
    tls: TLS | None = None
    """Certificates; without them identity is a claim and nothing is encrypted."""
    health: Address | None = None
    """host:port that answers gRPC health checks without a certificate, for probes. Not given: only `listen` does."""
    metrics: Port | None = None
    """host:port, or a port of 127.0.0.1, at which Prometheus reads this peer's figures. Not given: as the federation's
    spec has it. See [monitoring.md](monitoring.md)."""
    tensorboard: bool | None = None
    """Write every round's figures for TensorBoard. Not given: as the federation's spec has it."""
    tracker: TrackerName | None = None
    """`module:name` of a function or class of your own that is told every event. Not given: as the federation's spec
    has it."""
    machine: Machine | None = None
    """`cores` and `memory` that this peer's machine is taken to have, for protocols with `resources: pinned`. Not
    given: as `machines` in the federation's spec has it."""
    data: AnySource | None = None
    """This peer's own data instead of its part of the federation's; accuracies are then `local`. The block is whole:
    nothing is filled in from the federation's. Not given: as its entry in the ring has it."""


def load_spec(
    path: Path,
    *,
    peers: int | None = None,
    port: int | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
) -> Spec:
    """federation.yaml with the command line's changes, resolved; InputError says what is wrong and where."""
    return resolve(Document.read(path), peers=peers, port=port, seed=seed, overrides=overrides)


def resolve(
    document: Document,
    *,
    peers: int | None = None,
    port: int | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
) -> Spec:
    """The same of a document that is read already."""
    path, content = document.path, dict(document.content)
    if "federation" in content and "protocol" not in content:
        raise InputError(
            f"{path}: is a peer's config, which goes to dfl-peer --config; give the federation's file that it names"
        )
    content.setdefault("name", path.stem)
    options = dict[Location, str]()
    for override in overrides:
        keys = _override(content, override)
        options.pop(keys, None)  # the last one that names a key is what counts
        options[keys] = f"--set {override}"
    if seed is not None:
        content["seed"], options["seed",] = seed, f"--seed {seed}"
    document = replace(document, content=content, options=options)
    refuse_nul_in(content, document)
    if port is not None and (peers is None or content.get("ring")):
        raise InputError(f"--port {port} goes with --peers N where the file has no `ring`; leave it out")
    if peers is not None:
        content["ring"] = _ring(content.get("ring"), peers, FIRST_PORT if port is None else port)
    if "ring" not in content:
        raise InputError(f"{path}: `ring` is missing; list the peers there or give --peers N")
    if isinstance(content.setdefault("code", "."), str):
        content["code"] = str((path.parent / content["code"]).resolve())
        if not Path(content["code"]).is_dir():
            raise InputError(f"{document.where(('code',))}: `code`: there is no directory {content['code']}")
    if isinstance(content.get("recording"), str):
        content["recording"] = str((path.parent / content["recording"]).resolve())
    _move_clip_gradient(content, document)
    content["protocol"] = _component(content.get("protocol"), ("protocol",), [*PROTOCOLS], document)
    content["data"] = _component(content.get("data", "digits"), ("data",), [*SOURCES], document)
    model = content.get("model", {})
    named = {"name": ModelSettings().name, **model} if isinstance(model, dict) else model
    content["model"] = _component(named, ("model",), [*MODELS], document)
    content["task"] = _component(content.get("task", "classification"), ("task",), [*TASKS], document)
    content["ring"], own = _with_own_data(content["ring"], content["data"], document)
    if isinstance(content["code"], str) and own_code(content):
        # Only then: beside a spec without code of its own a file called pandas.py must not be taken for the library.
        import_from(Path(content["code"]))
    components: dict[Location, type[Settings]] = {
        ("protocol",): protocol_class(content["protocol"]["name"]),
        ("data",): source_type(content["data"]["name"]),
        ("task",): task_class(content["task"]["name"]),
        **{place: source_type(name) for place, name in own.items()},
    }
    return _relative_to(path.parent.resolve(), validate(Spec, content, document, components))


def _move_clip_gradient(content: dict[str, Any], document: Document) -> None:
    """`clip_gradient: 1` is short for `training: {clip_gradient: 1}`."""
    block = content.get("training", {})
    if "clip_gradient" not in content or not isinstance(block, dict):
        return
    if "clip_gradient" in block:
        where = document.where(("clip_gradient",))
        raise InputError(f"{where}: `clip_gradient` stands here and in `training`; leave one of them out")
    content["training"] = {**block, "clip_gradient": content.pop("clip_gradient")}


def _with_own_data(ring: Any, common: dict[str, Any], document: Document) -> tuple[Any, dict[Location, str]]:
    """The ring's entries, their `data` as whole blocks; and the names of these, by their places in the file.

    What such a block of the same name does not say is as in the federation's, `common`.
    """
    shared = {key: value for key, value in common.items() if key not in FOR_ALL}
    if not isinstance(ring, list):
        return ring, {}
    entries, names = [*ring], dict[Location, str]()
    for number, entry in enumerate(ring):
        if isinstance(entry, dict) and entry.get("data") is not None:
            place = ("ring", number, "data")
            given = {"name": entry["data"]} if isinstance(entry["data"], str) else entry["data"]
            if isinstance(given, dict) and given.get("name", common["name"]) == common["name"]:
                given = shared | given
            block = _component(given, place, [*SOURCES], document)
            entries[number], names[place] = {**entry, "data": block}, block["name"]
    return entries, names


def _relative_to(base: Path, spec: Spec) -> Spec:
    """Where data and weights lie, taken from the folder `base`."""
    ring = [member.model_copy(update={"data": member.data and member.data.relative_to(base)}) for member in spec.ring]
    changes = {"data": spec.data.relative_to(base), "model": spec.model.relative_to(base), "ring": tuple(ring)}
    return spec.model_copy(update=changes)


def load_peer(path: Path) -> tuple[PeerConfig, Spec]:
    """peer3.yaml and the spec it names, as a peer may start by them; paths are made absolute."""
    config, spec = read_peer(path)
    check_plaintext(config, spec)
    return config, spec


def read_peer(path: Path) -> tuple[PeerConfig, Spec]:
    """The same, whether or not the peer would speak in plaintext where it must not."""
    document = Document.read(path)
    content, base = dict(document.content), path.parent.resolve()
    if "federation" not in content and content.keys() & {"protocol", "ring"}:
        raise InputError(
            f"{path}: is a federation's file, which goes to dfl-launch run; give a peer's config, which names it under "
            "`federation`"
        )
    refuse_nul_in(content, document)
    components: dict[Location, type[Settings]] = {}
    if content.get("data") is not None:
        content["data"] = _component(content["data"], ("data",), [*SOURCES], document)
        components["data",] = source_type(content["data"]["name"])
    config = validate(PeerConfig, content, document, components)
    tls = config.tls and TLS.model_construct(
        ca=base / of_peer(config.tls.ca, config.id),
        cert=base / of_peer(config.tls.cert, config.id),
        key=base / of_peer(config.tls.key, config.id),
        earlier=tuple(base / of_peer(file, config.id) for file in config.tls.earlier),
    )
    out = of_peer(config.out or Path(config.id), config.id)
    spec = load_spec(base / config.federation)
    if config.id not in spec.ids:
        where = document.where(("id",))
        raise InputError(f"{where}: `{config.id}` is not in the federation's ring; {nearest(config.id, spec.ids)}")
    data = own_data(config.id, spec, config.data and config.data.relative_to(base))
    own = {"data": data and data.model_dump(mode="json"), "tracker": config.tracker}
    if spec.code and own_code(own):
        import_from(spec.code)
    changes = {"federation": base / config.federation, "out": base / out}
    return config.model_copy(update={**changes, "data": data, "tls": tls}), spec


def check_plaintext(config: PeerConfig, spec: Spec) -> None:
    """InputError when a peer without certificates would speak beyond loopback and the spec does not allow it."""
    if config.tls:
        return
    if spec.faulty_members:
        raise InputError(
            f"`faulty_members: {spec.faulty_members}` needs certificates, as members sign what they say of views, and "
            f"`{config.id}` has no `tls`; make certificates with `dfl-launch certs`, or write `faulty_members: 0`"
        )
    if spec.allows_plaintext:
        return
    for address in (config.listen, *(member.address for member in spec.ring)):
        if address and not is_loopback(address):
            raise InputError(
                f"{address} is not on this machine and `{config.id}` has no `tls`; "
                f"make certificates with `dfl-launch certs`, or write {spec.to_allow_plaintext}"
            )


def _component(raw: Any, place: Location, known: Sequence[str], document: Document) -> dict[str, Any]:
    """`protocol: fibfl` and `protocol: {name: fibfl}` are the same; the name must be known or `module:Name`."""
    key = place[-1]
    content = {"name": raw} if isinstance(raw, str) else raw
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        raise InputError(f"{document.where(place)}: `{key}` wants a `name`; known: {', '.join(sorted(known))}")
    name = content["name"]
    if name not in known and ":" not in name:
        raise InputError(f"{document.where((*place, 'name'))}: unknown {key} `{name}`; {nearest(name, known)}")
    return content


def _ring(ring: Any, peers: int, port: int) -> Any:
    """The ring that `--peers N` and `--port P` stand for; a ring in the file must agree with it."""
    if not 1 <= peers <= MAX_PEERS:
        raise InputError(f"--peers {peers}: give a number from 1 to {MAX_PEERS}")
    if not 1 <= port <= MAX_PORT - peers + 1:
        raise InputError(f"--port {port}: give a number from 1 to {MAX_PORT - peers + 1}, as {peers} ports are needed")
    if ring is None:
        return [{"id": f"peer{i}", "address": f"127.0.0.1:{port + i}"} for i in range(peers)]
    if isinstance(ring, list) and len(ring) != peers:
        raise InputError(f"--peers {peers} does not fit the {len(ring)} peers under `ring`; leave one of them out")
    return ring


def _override(content: dict[str, Any], text: str) -> Location:
    """Apply one `--set key.key=value` to the plain content; the keys that it names."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InputError(f"--set {text}: write key=value, such as --set protocol.gamma=0.3")
    try:
        given = scalar(value)
    except ValueError as error:
        raise InputError(f"--set {text}: the value is not valid YAML: {error}; put it in quotes") from None
    try:
        put(content, name, given)
    except ValueError as error:
        raise InputError(f"--set {text}: {error}, and --set cannot reach into one; edit the file") from None
    return tuple(name.split("."))

"""From the two files and the command line to settings: errors name file, line and what to do.

In this order: the command line's changes are put into the plain content; short forms (`protocol: fibfl`, `--peers N`,
`task: {monai: FOLDER}`) become whole blocks; the user's modules are made importable, if any are named; the classes that
the blocks' names choose validate the whole; and paths are taken from the folder of the file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from peer.errors import InputError, suggest
from peer.learning.data.sources import SOURCES, source_type
from peer.learning.model.settings import ModelSettings
from peer.learning.model.zoo import MODELS
from peer.learning.tasks import TASKS, task_class
from peer.network.wire.codec import Codec
from peer.plugins import Preset, import_from, installed, load_class, load_object, user_input_errors
from peer.protocols.registry import PROTOCOLS, protocol_class
from peer.settings import Settings, kind_of_word, of_peer
from peer.spec.agreement import OWN, PLACES, user_code, with_block
from peer.spec.blocks import MAX_PORT
from peer.spec.document import Document, Location, put, refuse_nul_in, scalar, validate
from peer.spec.federation import MAX_PEERS, Spec
from peer.spec.peer import PeerConfig, check_plaintext, peer_data

FIRST_PORT = 7700
"""Below 32768, so that no outgoing connection takes a dead peer's port."""

KINDS = {"protocol": "protocols", "model": "models", "task": "tasks", "data": "data", "wire": "codecs"}
"""What installed packages bring, by the block that names it."""

MADE_BY_PRESETS = {"task", "model", "data", "training"}
"""The blocks for which a preset may stand: what is trained, and not with whom or how safely."""
KEYS_FOR_ALL_PEERS = ("partition", "validation", "drift", "standardize", "impute")
"""Keys of the federation's `data` that are about all peers together, so that data of a peer's own have none of them."""


def load_spec(
    source: Path | Document,
    *,
    peers: int | None = None,
    port: int | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
) -> Spec:
    """federation.yaml, or one read already, with the command line's changes; InputError: what is wrong, and where."""
    document = source if isinstance(source, Document) else Document.read(source)
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
    if "peers" in content:
        raise InputError(
            f"{document.where(('peers',))}: unknown key `peers`; list the peers under `ring`, or give --peers N"
        )
    if "ring" not in content:
        raise InputError(f"{path}: `ring` is missing; list the peers there or give --peers N")
    if isinstance(content.setdefault("code", "."), str):
        content["code"] = str((path.parent / content["code"]).resolve())
        if not Path(content["code"]).is_dir():
            raise InputError(f"{document.where(('code',))}: `code`: there is no directory {content['code']}")
    if isinstance(content.get("recording"), str):
        content["recording"] = str((path.parent / content["recording"]).resolve())
    document = _move_clip_gradient(content, document)
    _fill_from_preset(content, document)
    content["protocol"] = _component(content.get("protocol"), ("protocol",), [*PROTOCOLS], document)
    content["data"] = _component(content.get("data", "digits"), ("data",), [*SOURCES], document)
    model = content.get("model", {})
    named = {"name": ModelSettings().name, **model} if isinstance(model, dict) else model
    content["model"] = _component(named, ("model",), [*MODELS], document)
    content["task"] = _component(content.get("task", "classification"), ("task",), [*TASKS], document)
    wire = kind_of_word(content.get("wire"))
    if isinstance(wire, dict) and ":" in str(wire.get("kind")):
        wire = wire | {"kind": "codec", "name": wire["kind"]}  # `wire: module:Name`
    if has_codec := isinstance(wire, dict) and wire.get("kind") == "codec":
        content["wire"] = _component(wire, ("wire",), [], document)
    content["ring"], own = _with_own_data(content["ring"], content["data"], document)
    content.update(_placed(content, path.parent.resolve()))
    if isinstance(content["code"], str) and user_code(content):
        # Only then: beside a spec without code of its own a file called pandas.py must not be taken for the library.
        import_from(Path(content["code"]))
    components: dict[Location, type[Settings]] = {
        ("protocol",): protocol_class(content["protocol"]["name"]),
        ("data",): source_type(content["data"]["name"]),
        ("task",): task_class(content["task"]["name"]),
        **{place: source_type(name) for place, name in own.items()},
    }
    if has_codec:
        components["wire", "codec", "options"] = load_class(content["wire"]["name"], Codec)
    _check_file(Spec, PeerConfig, "a peer's file", document)
    return _relative_to(path.parent.resolve(), validate(Spec, content, document, components))


def _check_file(kind: type[Settings], other: type[Settings], where: str, document: Document) -> None:
    """InputError for a key that the other kind of file has, and this one has not."""
    for key in [key for key in document.content if key in other.model_fields and key not in kind.model_fields]:
        raise InputError(f"{document.where((key,))}: `{key}` belongs in {where} (docs/configuration.md)")


def _fill_from_preset(content: dict[str, Any], document: Document) -> None:
    """Put the blocks that `task: {NAME: ...}` stands for into the content, below what it says itself."""
    block = content.get("task")
    if not isinstance(block, dict) or "name" in block or not block:
        return
    name, given = next(iter(block.items()))
    where, brought = document.where(("task", name)), installed("tasks")
    if name not in brought:
        known = suggest(name, [*TASKS, *brought])
        raise InputError(f"{where}: `task` wants a `name`, or one of what is installed; {known}")
    if len(block) > 1:
        raise InputError(f"{where}: `task` takes `{name}` alone; leave out `{[*block][1]}`, or write it into `{name}`")
    kind = load_object(brought[name].value, Preset)
    if not (isinstance(kind, type) and issubclass(kind, Preset)):
        raise InputError(f"{where}: write `task: {name}`, or `task: {{name: {name}, ...}}`")
    if given is None:
        raise InputError(f"{where}: `{name}` is empty; write its settings there")
    if not isinstance(given, dict):
        given = dict.fromkeys([*kind.model_fields][:1], given)
    preset, folder = validate(kind, given, document.below(("task", name)), {}), document.path.parent.resolve()
    with user_input_errors(f"{where}: `{name}` fails"):
        made = {**preset.blocks(folder)}
    if wrong := (made.keys() - MADE_BY_PRESETS) or ({"task"} - made.keys()):
        does = "makes" if wrong & made.keys() else "does not make"
        raise InputError(f"{where}: `{name}` {does} `{min(wrong)}`, against the rules of presets; tell who wrote it")
    content.update({key: _over(value, content.get(key) if key != "task" else None) for key, value in made.items()})


def _placed(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The content with `path` and `root` of a user's own blocks taken from the folder, as those of `data` are."""

    def from_folder(block: Mapping[str, Any]) -> dict[str, Any]:
        texts = {key: block[key] for key in PLACES if isinstance(block.get(key), str) and "://" not in block[key]}
        return {**block, **{key: str(folder / Path(text).expanduser()) for key, text in texts.items()}}

    for place in OWN:
        content = with_block(content, place, from_folder)
    ring = content.get("ring")
    if isinstance(ring, list):
        own = ("data", "options")
        has_own = [isinstance(one, dict) and "data" in one for one in ring]
        entries = [with_block(one, own, from_folder) if has else one for one, has in zip(ring, has_own, strict=True)]
        content = {**content, "ring": entries}
    return {**content}


def _over(made: Any, own: Any) -> Any:
    """A block that a preset makes, with what the file says in it; the file's alone where it names another."""
    if own is None:
        return made
    if not isinstance(made, dict) or not isinstance(own, dict) or own.get("name", made.get("name")) != made.get("name"):
        return own
    return made | {key: _over(made.get(key), value) for key, value in own.items()}


def _move_clip_gradient(content: dict[str, Any], document: Document) -> Document:
    """`clip_gradient: 1` is short for `training: {clip_gradient: 1}`; return the document that knows where it stood."""
    block = content.get("training", {})
    if "clip_gradient" not in content or not isinstance(block, dict):
        return document
    if "clip_gradient" in block:
        where = document.where(("clip_gradient",))
        raise InputError(f"{where}: `clip_gradient` stands here and in `training`; leave one of them out")
    given: dict[Location, str] = {("training", "clip_gradient"): document.where(("clip_gradient",))}
    content["training"] = {**block, "clip_gradient": content.pop("clip_gradient")}
    return replace(document, options=document.options | given)


def _with_own_data(ring: Any, common: dict[str, Any], document: Document) -> tuple[Any, dict[Location, str]]:
    """The ring's entries, their `data` as whole blocks; and the names of these, by their places in the file.

    What such a block of the same name does not say is as in the federation's, `common`.
    """
    shared = {key: value for key, value in common.items() if key not in KEYS_FOR_ALL_PEERS}
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
    """The spec with the paths of data and weights taken from the folder `base`."""
    ring = [member.model_copy(update={"data": member.data and member.data.relative_to(base)}) for member in spec.ring]
    changes = {"data": spec.data.relative_to(base), "model": spec.model.relative_to(base), "ring": tuple(ring)}
    return spec.model_copy(update=changes)


def load_peer(path: Path) -> tuple[PeerConfig, Spec]:
    """peer3.yaml and the spec it names, as a peer may start by them; paths are made absolute."""
    config, spec = read_peer(path)
    check_plaintext(config, spec)
    return config, spec


def read_peer(path: Path) -> tuple[PeerConfig, Spec]:
    """Read peer3.yaml and the spec it names, like `load_peer`, but without the check for plaintext."""
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
        content = _placed(content, base)
        components["data",] = source_type(content["data"]["name"])
    _check_file(PeerConfig, Spec, "the federation's file", document)
    config = validate(PeerConfig, content, document, components)
    if tls := config.tls:
        files = {key: base / of_peer(getattr(tls, key), config.id) for key in ("ca", "cert", "key")}
        earlier = tuple(base / of_peer(file, config.id) for file in tls.earlier)
        tls = tls.model_copy(update={**files, "earlier": earlier})
    out = of_peer(config.directory, config.id)
    spec = load_spec(base / config.federation)
    if config.id not in spec.ids:
        where = document.where(("id",))
        raise InputError(f"{where}: `{config.id}` is not in the federation's ring; {suggest(config.id, spec.ids)}")
    data = peer_data(config.id, spec, config.data and config.data.relative_to(base))
    own = {"data": data and data.model_dump(mode="json"), "tracker": config.tracker}
    if spec.code and user_code(own):
        import_from(spec.code)
    changes = {"federation": base / config.federation, "out": base / out}
    return config.model_copy(update={**changes, "data": data, "tls": tls}), spec


def _component(raw: Any, place: Location, known: Sequence[str], document: Document) -> dict[str, Any]:
    """`protocol: fibfl` and `protocol: {name: fibfl}` are the same; the name must be known or `module:Name`."""
    key = place[-1]
    content = {"name": raw} if isinstance(raw, str) else raw
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        raise InputError(
            f"{document.where(place)}: `{key}` wants a `name`; known: {', '.join(sorted([*known, 'module:Name']))}"
        )
    name = content["name"]
    if name in known or ":" in name:
        return content
    brought = installed(KINDS[str(key)])
    if name not in brought:
        where = document.where((*place, "name"))
        raise InputError(f"{where}: unknown {key} `{name}`; {suggest(name, [*known, *brought, 'module:Name'])}")
    reference = brought[name].value
    if key == "task" and isinstance(kind := load_object(reference), type) and issubclass(kind, Preset):
        where = document.where(place)
        raise InputError(f"{where}: `{name}` takes settings of its own; write `task: {{{name}: ...}}`")
    return content | {"name": reference}


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

"""The files of one's own that a cell's peers read, and what is in them: no digest of a spec tells."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from peer.peer_paths import of_peer
from peer.reading import open_plain
from peer.spec.federation import Spec
from peer.spec.own_code import own_code

BLOCK = 1 << 20
Sources = Mapping[str, Sequence[str]]
"""By what the spec calls it: where it lies, seen from the study's file, and the digest of each of its files."""


def sources(spec: Spec, base: Path, digest: Callable[[Path], str]) -> Sources:
    """Seen from the folder `base`."""
    return {
        name: [os.path.relpath(path, base.resolve()), *map(digest, dict.fromkeys(of_peer(path, id) for id in spec.ids))]
        for name, path in _named(spec)
    }


def _named(spec: Spec) -> Iterator[tuple[str, Path]]:
    # A source that must be told where its data lie knows nothing else of them.
    fields = type(spec.data).model_fields
    for key in ("path", "root"):
        if key in fields and fields[key].is_required():
            yield f"data.{key}", getattr(spec.data, key)
    if spec.model.weights is not None:
        yield "model.weights", spec.model.weights
    if spec.recording is not None:
        yield "recording", spec.recording
    if spec.code is not None:
        for module in {name.partition(":")[0] for name in own_code(spec.model_dump(mode="json"))}:
            file = spec.code / f"{module.replace('.', '/')}.py"
            yield module, file if file.exists() else file.with_suffix("") / "__init__.py"


def digest(path: Path) -> str:
    """Of a plain file's content; empty for a directory."""
    if path.is_dir():
        return ""
    found = hashlib.sha256()
    try:
        with open_plain(path) as file:
            while block := file.read(BLOCK):
                found.update(block)
    except OSError:
        return "cannot be read"
    return found.hexdigest()

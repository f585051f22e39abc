"""The first line of a run, by what stands in its file: it is told before anything is imported that takes seconds."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer.spec.document import Document, put, scalar
from peer.text import plural, printable

if TYPE_CHECKING:
    from peer.spec.federation import Spec


def header(
    document: Document, *, peers: int | None = None, overrides: Sequence[str] = (), out: Path | None = None
) -> str | None:
    """Which protocol, how many peers, and where; None where that cannot be told, as something is wrong.

    peers, overrides, out: as `--peers`, `--set` and `--out` have them.
    """
    try:
        content = changed(document, overrides)
        protocol, ring = content["protocol"], content.get("ring")
        name = protocol if isinstance(protocol, str) else protocol["name"]
        count = len(ring) if isinstance(ring, list) else peers
        place = out or default_directory(content["name"])
        return printable(f"{name}, {plural(count, 'peer')}, in {place.resolve()}") if count and place else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def changed(document: Document, overrides: Sequence[str]) -> dict[str, Any]:
    """The file's content with the command line's changes; ValueError for one that cannot be made."""
    content = {"name": document.path.stem} | document.content
    for override in overrides:
        name, _, value = override.partition("=")
        put(content, name, scalar(value))
    return content


def default_directory(name: str) -> Path | None:
    """Where a run of that name is without `--out`; None for a name that cannot name a directory."""
    return Path("runs") / name if name.strip(".") else None


def resolved(arguments: argparse.Namespace, document: Document | None = None) -> "Spec":
    """The spec that `spec_arguments` stand for; `document`: its file, if it is read already."""
    from peer.spec.peer import resolve  # which takes seconds

    return resolve(
        document or Document.read(arguments.federation),
        peers=arguments.peers,
        port=arguments.port,
        seed=arguments.seed,
        overrides=arguments.overrides,
    )

"""The federation that a command line names: the spec in its file, with the command line's changes.

`header` is the first line of a run. It goes by what is written in the file alone: it is printed before anything is
imported that takes seconds, so this module imports nothing of that kind at its top. `resolved` is the checked spec.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.run_files import RunFiles, default_directory
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
        content = {"name": document.path.stem} | document.content
        for override in overrides:
            name, _, value = override.partition("=")
            put(content, name, scalar(value))
        protocol, ring = content["protocol"], content.get("ring")
        name = protocol if isinstance(protocol, str) else protocol["name"]
        count = len(ring) if isinstance(ring, list) else peers
        place = out or default_directory(content["name"])
        return printable(f"{name}, {plural(count, 'peer')}, in {place.resolve()}") if count and place else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def resolved(arguments: argparse.Namespace, document: Document | None = None) -> "Spec":
    """The spec that `spec_arguments` stand for, of a file or of a run's directory; `document`: the file, if it is read
    already."""
    from peer.spec.loading import load_spec  # which takes seconds

    run = RunFiles(arguments.federation).federation
    return load_spec(
        document or (run if run.is_file() else arguments.federation),
        peers=arguments.peers,
        port=arguments.port,
        seed=arguments.seed,
        overrides=arguments.overrides,
    )


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Settings by their dotted keys, as `--set` takes them."""
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found

"""How a shell completes the command line, by argcomplete: it asks dfl-launch itself at every Tab."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peer.errors import InputError

SHELLS = ("bash", "zsh", "fish")
IDS = ("peer", "by")
"""Arguments that are ids of peers."""


def script(shell: str) -> str:
    """What the shell is to evaluate."""
    return str(argcomplete().shellcode(["dfl-launch"], shell=shell))


def complete(tree: argparse.ArgumentParser) -> None:
    """Answers the shell and ends the process."""
    for action in _actions(tree):
        if action.dest in IDS:
            vars(action)["completer"] = ids
    argcomplete().autocomplete(tree, always_complete_options=False)


def ids(parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The peers of the federation that the line names; none of a file that cannot be read."""
    from peer.spec.document import Document

    try:
        ring = Document.read(Path(parsed_args.federation)).content.get("ring")
        return [str(member["id"]) for member in ring] if ring else [f"peer{n}" for n in range(parsed_args.peers or 0)]
    except (InputError, TypeError, KeyError):
        return []


def argcomplete() -> Any:
    """The imported library; InputError when it is not installed."""
    try:
        import argcomplete
    except ImportError:
        raise InputError(
            "completion needs argcomplete; install it with: pip install -c constraints.txt 'dfl[completion]'"
        ) from None
    return argcomplete


def _actions(tree: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in tree._actions:
        if isinstance(action.choices, dict):
            for command in action.choices.values():
                yield from _actions(command)
        yield action

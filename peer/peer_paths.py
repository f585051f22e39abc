"""`{id}` in a path stands for the peer's id, so that one setting gives each peer a place of its own."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

ID = "{id}"


def names_peers(path: Path) -> bool:
    return ID in str(path)


def of_peer(path: Path, id: str) -> Path:
    return Path(str(path).replace(ID, id))


def spelled(path: Path) -> Path:
    """The path; ValueError for `{ID}` and the like in it, which would be taken as they stand."""
    for found in re.findall(r"\{\s*id\s*\}", str(path), re.IGNORECASE):
        if found != ID:
            raise ValueError(f"`{found}` in {path} stands for nothing; write `{ID}` for the peer's id")
    return path


PeerPath = Annotated[Path, AfterValidator(spelled)]

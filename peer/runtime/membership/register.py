"""What a member must never forget of views: those decided, what it has promised, and in which it lives."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from peer.errors import FailedError
from peer.files import read, sync, write_atomically
from peer.spec.recorded_views import VIEWS
from peer.views.acceptor import Acceptor
from peer.views.view import Chain, View


@dataclass
class Register:
    """views.json in a peer's directory. `write` blocks; it runs in a thread."""

    path: Path
    acceptor: Acceptor
    entered: int = 0
    """The number of the view in which this peer lives, or has last lived."""
    promised: int = -1
    """The round to which it has last promised to be able to go back."""

    @classmethod
    def open(cls, directory: Path, id: str, first: View) -> Self:
        """FailedError when it is damaged: a promise that is forgotten could make two federations of one."""
        path = directory / VIEWS
        try:
            kept = json.loads(read(path))
            return cls(path, Acceptor.load(kept["acceptor"]), int(kept["entered"]), int(kept["promised"]))
        except FileNotFoundError:
            return cls(path, Acceptor(id, Chain([first])))
        except (OSError, ValueError, KeyError, TypeError):
            raise FailedError(
                f"{path}: is damaged, and what this peer has promised stood there; put a copy in its place, or remove "
                f"{directory} and start this peer again: then the others take it in anew"
            ) from None

    def content(self) -> bytes:
        """What is to be kept, as it is now."""
        kept = {"acceptor": self.acceptor.state_dict(), "entered": self.entered, "promised": self.promised}
        return json.dumps(kept).encode()

    def write(self, content: bytes) -> None:
        """That is on disk when this returns."""
        write_atomically(self.path, content)
        sync(self.path.parent)

"""A peer's place in a view: what the runtime must know of the membership, whoever decides on it."""

from peer.network.network import Network
from peer.network.node import no_views
from peer.network.transport import Pipe
from peer.views.view import View


class Seat:
    """Of a run whose members stay the same: nothing is asked, and nothing held back."""

    def __init__(self, view: View) -> None:
        self.view = view

    def take(self, network: Network, done: int) -> None:
        """The peer has found on its disk what it had after round `done`, and begins to live in this view."""

    def tellable(self, durable: int) -> int:
        """Up to which round others may hear that this peer's are on disk."""
        return durable

    async def may_start(self, round: int) -> None:
        """Wait until this peer may begin that round: not while a view is being decided on."""

    async def answer(self, pipe: Pipe) -> None:
        """A question about views has come in."""
        await no_views(pipe)

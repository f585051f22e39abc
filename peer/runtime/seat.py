"""A peer's place in a view: what the runtime must know of the membership, whoever decides on it."""

from collections.abc import Mapping, Sequence

from peer.network.membership.durability import Durability
from peer.network.network import Network
from peer.network.node import no_views
from peer.network.transport import Pipe
from peer.runtime.barriers import drain
from peer.telemetry.events import Waiting
from peer.views.signing import UNSIGNED, Keyring
from peer.views.view import STALENESS_BOUND, View


class Seat:
    """Of a run whose members stay the same: nothing is asked, and nothing held back."""

    can_be_lost = False
    """Whether the others may go on without this peer: then it can be taken in anew whatever it has lost."""

    def __init__(self, view: View, patience: float) -> None:
        """patience: seconds."""
        self.view, self._patience = view, patience
        self.keyring: Keyring = UNSIGNED
        self.waiting: Waiting | None = None
        """For members, of whom too few are here to decide on the next view."""
        self.passed: Mapping[int, int] = {}
        """By the number of an earlier view, the round that all have on disk who have come from it to this one."""

    def take(self, network: Network, done: int) -> None:
        """The peer has found on its disk what it had after round `done`, and begins to live in this view."""

    def tellable(self, durable: int) -> int:
        """Up to which round others may hear that this peer's are on disk."""
        return durable

    def told_before(self, whole: Sequence[int]) -> int:
        """The round that a peer may tell that it has, by the rounds of its whole checkpoints, the newest first.

        No later one than would still be whole if the newest were found to be damaged, too.
        """
        return max(whole[1] if len(whole) > 1 else whole[0] - 1, whole[0] - STALENESS_BOUND + 1)

    def least_wanted(self, durability: Durability) -> int:
        """The least round to which this peer may have to go back."""
        return durability.low_watermark

    def patience(self, done: int) -> float:
        """Seconds to wait for neighbours after round `done`."""
        return self._patience

    async def may_start(self, round: int) -> None:
        """Wait until this peer may begin that round: not while a view is being decided on."""

    async def may_pass_on(self, network: Network) -> None:
        """Wait until all neighbours have this view's last round on disk: the next one begins then (rule R8)."""
        await drain(network)

    async def may_finish(self, network: Network) -> None:
        """Wait until this peer is needed no more, though its neighbours have all that they want of it."""

    async def answer(self, pipe: Pipe) -> None:
        """A question about views has come in."""
        await no_views(pipe)

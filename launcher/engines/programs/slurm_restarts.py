"""When a peer of a Slurm job is started again: by its own task, or with all others after the job was requeued."""

from launcher.run_files import RunFiles
from peer.files import write_atomically
from peer.process import DONE, FAILED, REFUSED, STOPPED
from peer.telemetry.results import gave_up, history


class PeerRestarts:
    """The restarts of one peer by its tasks, counted in DIR/.job/restarts/ID over all starts of the job."""

    def __init__(self, files: RunFiles, id: str) -> None:
        self._out = files.out(id)
        self._count = files.job / "restarts" / id
        self._requeued = (files.job / "row.json").exists()

    @property
    def total(self) -> int:
        return int(self._count.read_text()) if self._count.exists() else 0

    @property
    def completed(self) -> int:
        """The last round that the peer has completed."""
        done = history(self._out)
        return done[-1].round if done else 0

    def may_help(self, code: int) -> bool:
        """Return whether the exit code is that of a crash: of no success, no stop, and no decision of the peer's own.

        A refusal is such a decision at the first start only: later its cause may be an address taken for a moment.
        """
        if code in (DONE, *STOPPED) or (code in REFUSED and not self._requeued and not self.total):
            return False
        return not (code == FAILED and gave_up(self._out))

    def add(self) -> None:
        write_atomically(self._count, str(self.total + 1).encode())

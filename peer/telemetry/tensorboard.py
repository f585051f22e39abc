"""`tensorboard: true`: each round's figures where TensorBoard reads them."""

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peer.errors import InputError
from peer.telemetry.events import Event, RoundDone
from peer.telemetry.listener import Subscriber

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Subscriber):
    """Writes into `directory`. A round that is told again, after a crash say, replaces all from it on."""

    name = "TensorBoard"

    def __init__(self, directory: Path) -> None:
        self._directory, self._make = directory, writer_class()
        self._writer: SummaryWriter | None = None
        self._round = 0

    def hear(self, event: Event) -> None:
        if not isinstance(event, RoundDone):
            return
        if self._writer is None or event.round <= self._round:
            self.close()
            self._writer = self._make(self._directory, purge_step=event.round)
        self._round = event.round
        for tag, value in scalars(event):
            self._writer.add_scalar(tag, value, event.round, walltime=event.time)
        self._writer.flush()  # what is killed has written all but the round it was in

    def close(self) -> None:
        if self._writer:
            self._writer.close()


def scalars(event: RoundDone) -> Iterator[tuple[str, float]]:
    """All numbers of a round with their tags, such as accuracy/matched."""
    groups: dict[str, Mapping[str, float | None]] = {
        "accuracy": {**event.accuracy, "balanced": event.balanced},
        "loss": {"train": event.loss, "test": event.test_loss},
        "figures": event.figures,
        "validation": event.validation,
        "seconds": event.seconds,
        "bytes": {"sent": event.bytes_sent, "received": event.bytes_received},
        "notes": event.single_notes,
    }
    for group, values in groups.items():
        yield from ((f"{group}/{name}", value) for name, value in values.items() if value is not None)


def writer_class() -> Any:
    """The official writer; InputError when it is not installed."""
    try:
        return importlib.import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError as error:
        raise InputError(
            f"`tensorboard: true` needs the package tensorboard, which cannot be imported here ({error}); install it "
            "with: pip install -c constraints.txt 'dfl[tensorboard]'"
        ) from error

"""`tracker: module:name`: a function or class of the user's that is told of every event."""

from collections.abc import Callable

from peer.errors import InputError
from peer.plugins import load_object
from peer.telemetry.events import Event
from peer.telemetry.listener import Subscriber


class Tracker(Subscriber):
    """Calls what `name` names; of a class it makes one object, in the thread in which that is called."""

    def __init__(self, name: str) -> None:
        self.name = f"tracker `{name}`"
        self._found = load_tracker(name)
        self._call: Callable[[Event], object] | None = None

    def hear(self, event: Event) -> None:
        if self._call is None:
            self._call = self._found() if isinstance(self._found, type) else self._found
        self._call(event)


def load_tracker(name: str) -> Callable[..., object]:
    """The function or class called `module:name`; InputError when it cannot be called."""
    found = load_object(name)
    called = isinstance(found, type) and any("__call__" in vars(kind) for kind in found.__mro__)
    if not callable(found) or (isinstance(found, type) and not called):
        raise InputError(f"`tracker: {name}` cannot be called with an event; write a function `def track(event):`")
    return found  # type: ignore[no-any-return]

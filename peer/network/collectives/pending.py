"""What has been sent and waits for its answers: begun at the call, ended by `await`."""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class Pending(Coroutine[Any, Any, T]):
    """The awaitable half of a call. One that nobody awaits holds no coroutine, and dies without a warning."""

    def __init__(self, finish: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._finish = finish
        self._running: Coroutine[Any, Any, T] | None = None

    @property
    def awaited(self) -> bool:
        return self._running is not None

    def _run(self) -> Coroutine[Any, Any, T]:
        if self._running is None:
            self._running = self._finish()
        return self._running

    def __await__(self) -> Generator[Any, Any, T]:
        return self._run().__await__()

    def send(self, value: Any, /) -> Any:
        return self._run().send(value)

    def throw(self, *error: Any) -> Any:
        return self._run().throw(*error)

    def close(self) -> None:
        if self._running:
            self._running.close()

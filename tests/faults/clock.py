"""An event loop on a clock of its own: it never waits, it never uses a thread, and any life in it can end at any step.

Everything a process does is tagged, by a context variable, with the life it belongs to. A dead life's callbacks
are never called again: what it had in memory is gone, without a `finally` having run.
"""

import asyncio
import selectors
from collections.abc import Callable, Collection
from contextvars import Context, ContextVar, copy_context
from functools import partial
from random import Random
from typing import Any

LIFE: ContextVar["Life"] = ContextVar("LIFE")


class DiedError(BaseException):
    """The process died inside a blocking call; nothing may catch it but the loop."""


class Life:
    """One process, from its start to its end. It tells of each step, so that a fault can hit any one of them."""

    def __init__(self, id: str, fatal: Callable[["Life", str], bool]) -> None:
        """fatal: whether a step of a kind is the last."""
        self.id, self.dead = id, False
        self.tasks: list[asyncio.Task[Any]] = []
        self.lost: list[Callable[[], object]] = []
        """What was to be called after its end."""
        self._fatal = fatal

    def step(self, kind: str) -> None:
        """Take a step of a kind; DiedError when it was the last."""
        if self.dead or self._fatal(self, kind) or self.dead:
            raise DiedError


def here(kind: str) -> None:
    """A step of the process that calls this."""
    life = LIFE.get(None)
    if life:
        life.step(kind)


class OneThread:
    """An executor: one call after the other, each to its end whatever has become of whoever waits for it."""

    def __init__(self, random: Random, slow: float = 0.0) -> None:
        """slow: how often a call takes seconds."""
        self.random, self.slow, self.free = random, slow, 0.0

    def begin(self, now: float, seconds: float) -> float:
        """When a call ends that is made now and takes so many seconds."""
        if self.slow and self.random.random() < self.slow:
            seconds += self.random.expovariate(1.0)
        self.free = max(now, self.free) + seconds
        return self.free


class Selector(selectors.SelectSelector):
    """Lets the clock jump to the next timer instead of waiting for it."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen again")
        self.loop.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Deterministic for one `random`: it draws how long blocking calls take."""

    def __init__(self, random: Random) -> None:
        selector = Selector()
        selector.loop = self
        self.now, self.random = 1000.0, random
        self.burying = False
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        life = LIFE.get(None) if context is None else context.get(LIFE)
        if life is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(self._guarded, life, callback, args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        life = LIFE.get(None) if context is None else context.get(LIFE)
        if life is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, self._guarded, life, callback, args, context=context)

    def _guarded(self, life: Life, callback: Any, args: tuple[Any, ...]) -> None:
        if self.burying:
            callback(*args)
            return
        try:
            life.step("callback")
        except DiedError:
            life.lost.append(partial(callback, *args))
            return
        try:
            callback(*args)
        except DiedError:
            return

    def create_task(self, coro: Any, **options: Any) -> Any:
        task = super().create_task(coro, **options)
        context = options.get("context")
        life = LIFE.get(None) if context is None else context.get(LIFE)
        if life:
            life.tasks.append(task)
            if len(life.tasks) > 500:
                life.tasks = [kept for kept in life.tasks if not kept.done()]
        return task

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """The call happens all at once, in a while; of OneThread after those before it."""
        future = self.create_future()

        def run() -> None:
            if self.burying:
                return
            here("blocking")
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 (the caller gets it, as from a thread)
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        seconds = self.random.expovariate(20.0)
        ends = executor.begin(self.now, seconds) if isinstance(executor, OneThread) else self.now + seconds
        self.call_at(ends, run, context=copy_context())
        return future

    def bury(self, lives: Collection[Life]) -> None:
        """Wind up the frames of all tasks, now that nothing they do counts any more."""
        self.burying = True
        for life in lives:
            life.dead = True
            for callback in life.lost:
                self.call_soon(callback, context=in_life(life))
        while left := [task for life in lives for task in life.tasks if not task.done()]:
            for task in left:
                task.cancel()
            self.run_until_complete(asyncio.sleep(1))


def in_life(life: Life | None) -> Context:
    """A context whose callbacks belong to that life, or to no process."""
    context = Context()
    if life:
        context.run(LIFE.set, life)
    return context

"""Subscribers get events in order, and harm nobody but themselves."""

import time
from collections.abc import Callable
from threading import Event as Flag
from threading import Thread

import pytest

from peer.telemetry import telemetry
from peer.telemetry.events import Done, Event, Resumed, SubscriberDropped
from peer.telemetry.telemetry import Subscriber, SubscriberThread


class Hearing(Subscriber):
    """Does with each event what it was given to do."""

    name = "tracker `mine:track`"

    def __init__(self, hear: Callable[[Event], None]) -> None:
        self.heard: list[Event] = []
        self.closed = False
        self._hear = hear

    def on_event(self, event: Event) -> None:
        self.heard.append(event)
        self._hear(event)

    def close(self) -> None:
        self.closed = True


ROUNDS = [Resumed(round=number) for number in range(50)]


def test_all_is_told_in_order_before_the_end() -> None:
    subscriber, said = Hearing(lambda _event: time.sleep(0.001)), list[Event]()
    told = SubscriberThread(subscriber, said.append)
    for event in ROUNDS:
        told.publish(event)
    told.end()
    assert subscriber.heard == ROUNDS
    assert subscriber.closed
    assert said == []


@pytest.mark.parametrize("error", [ValueError("no disk"), SystemExit(3)], ids=["an error", "the end of the program"])
def test_what_it_raises_is_said_once_with_the_line(error: BaseException) -> None:
    def fail(event: Event) -> None:
        if event == ROUNDS[2]:
            raise error

    subscriber, said = Hearing(fail), list[Event]()
    told = SubscriberThread(subscriber, said.append)
    for event in ROUNDS:
        told.publish(event)
    told.end()
    told.publish(Done())
    assert subscriber.heard == ROUNDS[:3]
    assert subscriber.closed
    (untold,) = said
    assert isinstance(untold, SubscriberDropped)
    what = f"{type(error).__name__}: {error}"
    assert f"tracker `mine:track` failed: {what} ({__file__}:" in str(untold)
    assert str(untold).endswith("it is told nothing more, and the peer goes on")


def test_who_falls_too_far_behind_is_told_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "MAX_EVENTS_BEHIND", 10)
    free = Flag()
    subscriber, said = Hearing(lambda _event: free.wait()), list[Event]()  # type: ignore[func-returns-value]
    told = SubscriberThread(subscriber, said.append)
    for event in ROUNDS:
        told.publish(event)
    assert [str(event).partition(";")[0] for event in said] == ["tracker `mine:track` is 10 events behind"]
    free.set()
    told.end()
    assert len(subscriber.heard) <= 11
    assert subscriber.closed


def test_as_many_as_may_wait_are_taken_in_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "MAX_EVENTS_BEHIND", 10)
    begun, free = Flag(), Flag()
    subscriber, said = Hearing(lambda _event: (begun.set(), free.wait())), list[Event]()  # type: ignore[func-returns-value]
    told = SubscriberThread(subscriber, said.append)
    told.publish(ROUNDS[0])
    begun.wait()
    for event in ROUNDS[1:11]:
        told.publish(event)
    ended = ending(told)
    free.set()
    ended.join()
    assert subscriber.heard == ROUNDS[:11]
    assert subscriber.closed
    assert said == []


def test_the_end_waits_until_what_went_wrong_is_told() -> None:
    def fail(_event: Event) -> None:
        raise ValueError

    free, said = Flag(), list[Event]()
    subscriber = Hearing(fail)
    told = SubscriberThread(subscriber, lambda event: (free.wait(), said.append(event)))  # type: ignore[func-returns-value,arg-type,return-value]
    told.publish(Done())
    ended = ending(told)
    assert ended.is_alive()
    free.set()
    ended.join()
    assert len(said) == 1
    assert subscriber.closed


def ending(told: SubscriberThread) -> Thread:
    """A thread in which it ends, and which had the time to get as far as it can."""
    thread = Thread(target=told.end)
    thread.start()
    thread.join(0.2)
    return thread


def test_who_hangs_does_not_keep_a_peer_from_its_end() -> None:
    free = Flag()
    subscriber, said = Hearing(lambda _event: free.wait()), list[Event]()  # type: ignore[func-returns-value]
    told = SubscriberThread(subscriber, said.append)
    told.publish(Done())
    told.end(patience=0.05)
    assert ["within 0.05 s" in str(event) for event in said] == [True]
    free.set()

"""Whoever comes is let in, and of those that say nothing an older one goes."""

import socket
from contextlib import ExitStack
from typing import Self

from peer.network.limits import UnknownCallerLimits
from peer.network.transport.addresses import Endpoint
from peer.network.transport.unknown_callers import ConnectionLimiter, PerOriginQuota
from peer.telemetry.events import CallerRefused, Event


def test_the_oldest_of_an_origin_that_has_too_many_goes() -> None:
    crowd: PerOriginQuota[int] = PerOriginQuota(most=10, of_one_origin=2)
    assert [crowd.add(number, "a") for number in range(4)] == [None, None, 0, 1]
    assert list(crowd) == [2, 3]


def test_when_there_are_too_many_in_all_who_has_most_gives_way() -> None:
    crowd: PerOriginQuota[str] = PerOriginQuota(most=4, of_one_origin=4)
    for name in ("few", "many1", "many2", "many3"):
        assert crowd.add(name, name.rstrip("123")) is None
    assert crowd.add("new", "new") == "many1"
    assert crowd.add("newer", "newer") == "many2"
    assert "few" in crowd


def test_who_has_left_counts_no_more() -> None:
    crowd: PerOriginQuota[str] = PerOriginQuota(most=1, of_one_origin=1)
    crowd.add("first", "a")
    crowd.remove("first")
    crowd.remove("first")
    assert crowd.add("second", "a") is None


class Door:
    """A port that is looked after; the near ends of its connections stay open."""

    def __init__(self, strangers: UnknownCallerLimits) -> None:
        self.told, self._open = list[Event](), ExitStack()
        self.keeper = ConnectionLimiter(strangers, self.told.append)
        self._server = self._open.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.keeper.watch_port(self._server.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def connect(self, member: str, host: str = "127.0.0.1") -> tuple[socket.socket, Endpoint]:
        """That member's far end of a connection from there, and what the doorkeeper sees of it."""
        far = socket.create_connection(self._server.getsockname(), source_address=(host, 0))
        self._open.enter_context(far)
        self._open.enter_context(self._server.accept()[0])
        self.keeper.set_owner(caller := far.getsockname(), member)
        return far, caller


def test_of_one_members_connections_the_oldest_that_is_in_no_use_goes() -> None:
    """And from where most of these come: where there are no certificates somebody elsewhere may say that it is it."""
    with Door(UnknownCallerLimits(of_one_member=3)) as door:
        there = [door.connect("peer1", f"127.0.0.{host}") for host in (1, 1, 2, 2, 1)]
        other, _ = door.connect("peer2")
        first = there[0][1]
        with door.keeper.exempt(first), door.keeper.exempt(first, in_use=True):
            door.keeper.scan()
            assert [shut(far) for far, _ in there] == [False, True, True, False, False]
            door.keeper.scan()
            assert not shut(other)
    [refused] = door.told
    assert isinstance(refused, CallerRefused)
    assert (refused.caller, refused.reason) == ("peer1", "too many connections of one member")


def test_members_that_are_no_neighbours_leave_room_for_those_that_are() -> None:
    with Door(UnknownCallerLimits(connections=2)) as door:
        neighbour, caller = door.connect("neighbour")
        others = [door.connect(f"peer{number}")[0] for number in range(4)]
        with door.keeper.exempt(caller):
            door.keeper.scan()
        assert sum(map(shut, others)) == 2
        assert not shut(neighbour)


def test_a_connection_on_which_too_many_calls_come_is_closed() -> None:
    """Unless it is a neighbour's; and calls between two scans count, not those of all times."""
    with Door(UnknownCallerLimits(calls=3)) as door:
        (busy, caller), (steady, even), (neighbour, near) = (door.connect(id) for id in ("peer1", "peer2", "peer3"))
        with door.keeper.exempt(near):
            for calls in (3, 3, 4):
                for host, port in [even] * 3 + [caller] * calls + [near] * 4:
                    door.keeper.on_stream(f"ipv4:{host}:{port}")
                assert not shut(busy)
                door.keeper.scan()
        assert [shut(far) for far in (busy, steady, neighbour)] == [True, False, False]
    [refused] = door.told
    assert isinstance(refused, CallerRefused)
    assert (refused.caller, refused.reason) == ("peer1", "too many calls on one connection")


def shut(far: socket.socket) -> bool:
    far.setblocking(False)
    try:
        return far.recv(1) == b""
    except BlockingIOError:
        return False

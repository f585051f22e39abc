"""`on_stop: leave` and `dfl-launch leave` with real processes: who leaves costs nobody `absence`."""

import signal

from healing import await_view, begin, end, healing
from real_peers import Build


def test_one_leaves_by_sigterm(federation: Build) -> None:
    one = healing(federation, on_stop="leave")
    begin(one)
    leaver = one.peers.pop("peer2")
    leaver.signal(signal.SIGTERM)
    view = await_view(one, "peer0", ("peer0", "peer1", "peer3"))
    assert (view["planned"], view["reason"]) == (True, "peer2 leaves")
    assert leaver.wait(20) == 0
    [departed] = one.events("peer2", "departed")
    assert departed["sentence"].startswith("left: view 1 goes on without this peer")
    views = end(one, "peer0", "peer1", "peer3")
    assert [view.members for view in views] == [one.ids, ("peer0", "peer1", "peer3")]

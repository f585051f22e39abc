"""Networks that fall apart for longer than `absence` and heal, between hosts: never two federations, and all finish."""

from collections.abc import Collection, Iterator

import pytest
from healing import ABSENCE, await_view, begin, end, healing
from real_peers import Build, SmallFederation

from faults.hosts import Hosts, missing

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    hosts = Hosts(5)
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.remove()


def on(hosts: Hosts, build: Build, peers: int) -> SmallFederation:
    """Each peer on its own host, under way."""
    addresses = [f"{address}:7700" for address in hosts.addresses[:peers]]
    one = healing(build, peers, addresses=addresses, plaintext="trusted")
    for id, host in zip(one.ids, hosts.names[:peers], strict=True):
        one.env[id] |= {"HOST": host}
    begin(one)
    return one


def test_a_cable_is_pulled_and_plugged_in_again(hosts: Hosts, federation: Build) -> None:
    one = on(hosts, federation, 4)
    with hosts.pulled(2):
        await_view(one, "peer0", ("peer0", "peer1", "peer3"))
    await_view(one, "peer0", one.ids)
    views = end(one)
    assert views[1].reason == f"peer2 silent for {ABSENCE} s"
    assert views[-1].members == one.ids


@pytest.mark.parametrize(("peers", "cut"), [(4, (1, 2)), (5, (0, 2))])
def test_a_network_falls_in_two(peers: int, cut: Collection[int], hosts: Hosts, federation: Build) -> None:
    """More than half go on, or the half with the first member; the rest decides nothing, and comes back."""
    one = on(hosts, federation, peers)
    parts = [id for i, id in enumerate(one.ids) if i in cut], [id for i, id in enumerate(one.ids) if i not in cut]
    going_on, waiting = sorted(parts, key=lambda part: (-len(part), part))
    with hosts.apart(cut):
        await_view(one, going_on[0], going_on)
        assert not any(one.events(id, "view") for id in waiting)
    await_view(one, going_on[0], one.ids)
    views = end(one)
    assert views[1].members == tuple(going_on)
    assert views[-1].members == one.ids

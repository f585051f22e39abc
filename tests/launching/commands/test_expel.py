"""What an operator is told of an expulsion or a departure, where a member that is asked lies."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.commands import membership
from peer.errors import FailedError
from peer.network.operator_client import PeerStatus
from peer.spec.federation import Spec
from peer.spec.loading import load_spec
from peer.views.statements import Ballot, Decided, Decision, Denied, Heard, Reply
from peer.views.view import View


def expelled(*members: str) -> Decided:
    view = View(1, members, 3, reason="voted out", expelled=("peer3",))
    return Decided((Decision(view, Ballot(1, "peer0"), ()),))


TRUE = expelled("peer0", "peer1", "peer2")
LIES = {"no view": Decided(()), "refused": Denied("never"), "invented": expelled("peer1")}


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    (tmp_path / "federation.yaml").write_text(
        "{protocol: fedavg, data: digits, on_loss: bypass, absence: 3, faulty_members: 1}"
    )
    return load_spec(tmp_path / "federation.yaml", peers=4)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """answering(**replies): each member gives these replies, the last one again and again."""

    def answer(**replies: list[Reply]) -> None:
        @asynccontextmanager
        async def member(_spec: Spec, id: str, _certificates: None) -> AsyncIterator[Any]:
            left: Iterator[Reply] = iter(replies[id][:-1])

            async def ask(_request: object) -> Reply:
                return next(left, replies[id][-1])

            yield ask

        async def none(*_: object) -> list[Any]:
            return []

        monkeypatch.setattr(membership, "_member", member)
        monkeypatch.setattr(membership, "_statuses", none)
        monkeypatch.setattr(membership, "SHORT_SECONDS", 0.7)

    return answer


def asked(*ids: str) -> dict[str, None]:
    return dict.fromkeys(ids)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_what_one_member_says_of_an_expulsion_neither_ends_it_nor_is_told_as_true(
    spec: Spec, answering: Callable[..., None], lie: Reply
) -> None:
    answering(peer0=[Heard(), TRUE], peer1=[lie], peer2=[Heard(), TRUE])
    told = await membership._expel(spec, "peer3", asked("peer0", "peer1", "peer2"))
    assert told == "view 1 from round 3 on: peer0, peer1, peer2 (voted out)"
    answering(peer0=[Heard()], peer1=[lie], peer2=[Heard()])
    with pytest.raises(FailedError, match=r"^peer3 is not voted out: the consent of peer0, peer2 is noted") as error:
        await membership._expel(spec, "peer3", asked("peer0", "peer1", "peer2"))
    assert ("peer1 says: " in str(error.value)) == (lie != Decided(()))


async def test_what_more_members_say_than_may_lie_is_true(spec: Spec, answering: Callable[..., None]) -> None:
    answering(peer0=[Denied("too few would be left")], peer1=[Heard()], peer2=[Denied("too few would be left")])
    with pytest.raises(FailedError, match=r"^peer3 cannot be voted out: too few would be left$"):
        await membership._expel(spec, "peer3", asked("peer0", "peer1", "peer2"))


async def test_one_that_alone_is_asked_is_believed(spec: Spec, answering: Callable[..., None]) -> None:
    """The operator has named it."""
    answering(peer0=[TRUE])
    assert (await membership._expel(spec, "peer3", asked("peer0"))).startswith("view 1 ")


@pytest.mark.parametrize(("others", "told"), [((), None), (("peer1",), "view 1 from round 3 on: without peer3")])
async def test_one_that_has_ended_is_out_when_more_members_say_so_than_may_lie(
    spec: Spec, monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...], told: str | None
) -> None:
    def said(id: str, view: int) -> PeerStatus:
        return PeerStatus(id, "training", 3, 5, None, 0, 0, (), {}, view=view, first=3, outside=("peer3",) * view)

    async def statuses(*_: object) -> list[PeerStatus]:
        return [said("peer0", 1), *(said(id, 1) for id in others), said("peer2", 0)]

    monkeypatch.setattr(membership, "_statuses", statuses)
    monkeypatch.setattr(membership, "LAST_LOOKS", 1)
    assert await membership._decided(spec, "peer3", None) == told

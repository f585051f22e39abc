"""Whoever is refused says in what the two differ, with both values; nothing of it is told to a stranger."""

from typing import Any

import pytest

from peer.network.limits import Limits
from peer.network.streams.handshake import MORE, Identity, describe_refusal
from peer.network.transport.grpc import MAX_MESSAGE
from peer.network.wire.messages import Hello, Refusal, Reply, UntrustedDecoder

OURS = {"seed": 42, "protocol": {"name": "fibfl", "gamma": 0.5}, "ring": ["a", "b"]}


def identity(id: str, settings: dict[str, Any], data: tuple[str, ...] = ()) -> Identity:
    return Identity(id, {key: str(value) for key, value in settings.items()}, "".join(data), data, settings=settings)


def refusal(ours: Identity, theirs: Identity) -> str:
    """What `ours` says when `theirs` has refused it."""
    judged = theirs.check(Hello.FromString(ours.hello("them")), None)
    assert judged
    return describe_refusal(Refusal.FromString(judged.SerializeToString()), ours)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 7}, "its federation has `seed` 7, and this peer's `seed` 42"),
        (
            {"protocol": {"name": "fibfl", "gamma": 0.4}},
            "its federation has `protocol.gamma` 0.4, and this peer's `protocol.gamma` 0.5",
        ),
        (
            {"ring": ["b", "a"]},
            """its federation has `ring.0` "b", `ring.1` "a", and this peer's `ring.0` "a", `ring.1` "b\"""",
        ),
        ({"dials_out": ["a"]}, """its federation has `dials_out.0` "a", and this peer's has nothing of the kind"""),
    ],
)
def test_of_settings(changes: dict[str, Any], said: str) -> None:
    assert refusal(identity("us", OURS), identity("them", OURS | changes)) == f"refused: {said}; make the two alike"


def test_of_a_setting_that_only_one_has() -> None:
    said = refusal(identity("us", OURS | {"clip_gradient": 1.0}), identity("them", OURS))
    assert said.startswith(
        "refused: this peer's federation has `clip_gradient` 1.0, and the other's has nothing of the kind"
    )


def test_of_columns_and_classes() -> None:
    ours = identity("us", OURS, ("2 columns", "column 1 `age`", "column 2 `weight`", "class 0 `no`"))
    theirs = identity("them", OURS, ("2 columns", "column 1 `age`", "column 2 `height`", "class 0 `nein`"))
    assert refusal(ours, theirs) == (
        "refused: its data has column 2 `height`, class 0 `nein`, and this peer's column 2 `weight`, class 0 `no`; "
        "make the two alike"
    )


def test_of_a_large_ring_only_the_names_of_the_keys() -> None:
    ring = [f"peer{number}" for number in range(9000)]
    ours, theirs = identity("us", OURS | {"ring": ring}), identity("them", OURS | {"ring": [*ring[:-1], "other"]})
    assert refusal(ours, theirs) == "refused: its federation differs in `ring`"


@pytest.mark.parametrize(("columns", "differs"), [(20_531, 0), (20_531, 700), (60_660, 700), (60_660, 60_000)])
def test_of_a_table_with_very_many_columns_what_differs_is_told_if_there_is_room(columns: int, differs: int) -> None:
    """Nothing that only one of them leaves out is taken for a difference, and the refusal fits into a message."""
    ours = [f"column {number} `gene ENSG{number:011}`" for number in range(1, columns + 1)]
    theirs = [*ours]
    if differs:
        theirs[differs - 1] = f"column {differs} `other`"
    us, them = identity("us", OURS, (f"{columns} columns", *ours)), identity("them", OURS, ("one more", *theirs))
    judged = them.check(Hello.FromString(us.hello("them")), None)
    assert judged
    assert judged.ByteSize() < MAX_MESSAGE
    sent = Reply(refusal=judged).SerializeToString()
    said = describe_refusal(UntrustedDecoder(Limits(), 3).answer(sent).refusal, us)
    kept = differs if differs < 20_000 else 0
    assert (f"`other`, and this peer's {columns} columns, {ours[differs - 1]}" in said) == (kept > 0)
    assert said.startswith(f"refused: its data has one more{', ' if kept else ', and'}")


@pytest.mark.parametrize("told", [[MORE], [MORE, MORE], ["a", MORE], [MORE, "a"], [], ["a"] * 20_000 + [MORE]])
@pytest.mark.parametrize("columns", [0, 3, 30_000])
@pytest.mark.parametrize("reason", [Refusal.MANIFEST, Refusal.FEDERATION])
def test_what_a_liar_leaves_out_makes_no_difference_of_what_both_have(
    told: list[str], columns: int, reason: Refusal.Reason
) -> None:
    ours = tuple(f"column {number}" for number in range(columns))
    us = identity("us", OURS | {"run": [*ours]}, ours)
    keys = ["run"] if reason == Refusal.FEDERATION else [*ours[:2], *told]
    said = describe_refusal(Refusal(reason=reason, detail="no", keys=keys, settings=[*ours[:2], *told]), us)
    assert said.startswith("refused: ")
    assert len(said) < 1000
    if reason == Refusal.MANIFEST and told == [MORE]:
        assert said == ("refused: no")

"""The proof of Definitions 3.1 to 3.3 on hand-made audits: clean ones, and each kind of breach."""

from itertools import permutations
from typing import Any

import pytest
from audits_written import as_read
from hypothesis import given
from hypothesis import strategies as st

from launcher.reports import privacy as proof_of
from launcher.reports.privacy import PrivacyDeclaration, hub, why_no_ring
from launcher.reports.summary_json import UnverifiedBytes
from launcher.reports.summary_text import privacy_lines
from launcher.views import Views
from peer.learning.model.layout import ModelPart
from peer.protocols.declarations import Declarations, Share
from peer.spec.blocks import Coded
from peer.text import MAX_MESSAGE_CHARACTERS

MEMBERS = ("peer0", "peer1", "peer2", "peer3")
BYTES = 465_408


EXTRACTOR, MODEL = Share("extractor"), Share("model")


def privacy(audits: dict[str, Any], *shares: Share, own_code: bool = False) -> dict[str, Any]:
    declared = Declarations("own:Protocol" if own_code else "fibfl", shares or (EXTRACTOR,), ())
    return proof_of.privacy(
        Views(MEMBERS, 2), as_read(audits), PrivacyDeclaration(declared, ("own:Protocol",) if own_code else ())
    )


def ring_audits(rounds: int = 2, vector: str = "extractor") -> dict[str, Any]:
    """What four peers write that exchange one vector with both ring neighbours in every round."""
    audits: dict[str, Any] = {}
    for position, id in enumerate(MEMBERS):
        around = [MEMBERS[position - 1], MEMBERS[(position + 1) % 4]]
        audits[id] = {
            "id": id,
            "rounds": [
                {"round": 0, "edges": {}, "sent": [], "received": []},
                *(
                    {
                        "round": round,
                        "edges": {other: ["send", "receive"] for other in around},
                        "sent": [{"to": other, "vector": vector, "bytes": BYTES, "head_bytes": 0} for other in around],
                        "received": [{"from": other, "vector": vector, "bytes": BYTES} for other in around],
                    }
                    for round in range(1, rounds + 1)
                ),
            ],
        }
    return audits


def send(audits: dict[str, Any], source: str, target: str, **changes: Any) -> None:
    """One more vector in round 2, in both ends' books."""
    entry = {"to": target, "vector": "extractor", "bytes": 10, "head_bytes": 0} | changes
    audits[source]["rounds"][2]["sent"].append(entry)
    if target in audits:
        received = {"from": source, "vector": entry["vector"], "bytes": entry["bytes"]}
        audits[target]["rounds"][2]["received"].append(received)


def reasons(audits: dict[str, Any]) -> list[str]:
    return [violation["reason"] for violation in privacy(audits)["violations"]]


def test_clean_run() -> None:
    proof = privacy(ring_audits())
    assert proof["head_bytes_sent"] == 0
    assert proof["violations"] == []
    assert proof["definitions"] == {"3.1": True, "3.2": True, "3.3": True}
    assert proof["edges_used"] == [
        ["peer0", "peer1"],
        ["peer0", "peer3"],
        ["peer1", "peer0"],
        ["peer1", "peer2"],
        ["peer2", "peer1"],
        ["peer2", "peer3"],
        ["peer3", "peer0"],
        ["peer3", "peer2"],
    ]


def test_edge_that_was_not_authorised() -> None:
    audits = ring_audits()
    send(audits, "peer0", "peer2")
    proof = privacy(audits)
    assert [violation["reason"] for violation in proof["violations"]] == [
        "the edge was not authorised in this round",
        "peer2 was not to receive from peer0 in this round",
    ]
    first = proof["violations"][0]
    assert (first["round"], first["from"], first["to"], first["bytes"]) == (2, "peer0", "peer2", 10)
    assert ["peer0", "peer2"] in proof["edges_used"]
    assert proof["definitions"]["3.3"] is False


def test_an_empty_message_uses_no_edge_and_still_needs_one() -> None:
    audits = ring_audits()
    send(audits, "peer0", "peer2", bytes=0)
    proof = privacy(audits)
    assert ["peer0", "peer2"] not in proof["edges_used"]
    assert proof["violations"]


def test_empty_messages_hide_no_hub() -> None:
    audits: dict[str, Any] = {id: {"id": id, "rounds": []} for id in MEMBERS}
    for id in MEMBERS:
        others = [other for other in MEMBERS if other != id]
        edges = {other: ["send", "receive"] for other in others}
        audits[id]["rounds"] = [{"round": round, "edges": edges, "sent": [], "received": []} for round in range(3)]
    for id, other in permutations(MEMBERS, 2):
        send(audits, id, other, bytes=BYTES if MEMBERS[0] in (id, other) else 0)
    assert privacy(audits)["definitions"] == {"3.1": True, "3.2": False, "3.3": False}


def test_edge_authorised_in_another_round_only() -> None:
    audits = ring_audits()
    audits["peer0"]["rounds"][1]["edges"]["peer2"] = ["send"]
    audits["peer2"]["rounds"][1]["edges"]["peer0"] = ["receive"]
    send(audits, "peer0", "peer2")
    assert "the edge was not authorised in this round" in reasons(audits)


def test_edge_authorised_in_the_other_direction_only() -> None:
    audits = ring_audits()
    audits["peer0"]["rounds"][2]["edges"]["peer1"] = ["receive"]
    assert reasons(audits) == ["the edge was not authorised in this round"]


def test_private_head() -> None:
    audits = ring_audits()
    send(audits, "peer1", "peer2", vector="head", bytes=5160, head_bytes=5160)
    proof = privacy(audits)
    assert proof["head_bytes_sent"] == 5160
    assert proof["definitions"]["3.1"] is False
    assert [violation["reason"] for violation in proof["violations"]] == ["5160 bytes of a private head"]


def test_declared_head_is_counted_and_is_no_violation() -> None:
    audits = ring_audits(vector="model")
    for audit in audits.values():
        for record in audit["rounds"]:
            for entry in record["sent"]:
                entry["head_bytes"] = 5160
    proof = privacy(audits, MODEL)
    assert proof["head_bytes_sent"] == 4 * 2 * 2 * 5160
    assert proof["violations"] == []
    assert proof["definitions"] == {"3.1": False, "3.2": True, "3.3": True}


def test_head_that_may_leave_in_warm_up_only() -> None:
    audits = ring_audits(rounds=3, vector="model")
    for record in audits["peer0"]["rounds"][1:]:
        record["sent"][0]["head_bytes"] = 5160
    declared = Declarations("a protocol", (Share("model", rounds=range(1, 2)), Share("extractor")), ())
    proof = proof_of.privacy(Views(MEMBERS, 3), as_read(audits), PrivacyDeclaration(declared))
    assert [violation["round"] for violation in proof["violations"]] == [2, 3]
    assert proof["head_bytes_sent"] == 3 * 5160


@pytest.mark.parametrize(
    ("share", "own_code", "met", "why"),
    [
        (Share("mask"), True, None, "the protocol does not declare what is in it"),
        (Share("mask"), False, None, "the protocol does not declare what is in it"),
        (Share("mask", like="extractor"), True, None, "declared like the extractor by code of your own"),
        (Share("mask", like="extractor"), False, True, ""),
        (Share("mask", bytes=True), False, None, "bytes that nobody but the protocol can read"),
        (Share("mask", bytes=True, like="extractor"), True, None, "bytes that nobody but the protocol can read"),
        (Share("extractor"), True, True, ""),
    ],
)
def test_what_nobody_can_look_into_is_neither_proven_nor_denied(
    share: Share, own_code: bool, met: bool | None, why: str
) -> None:
    proof = privacy(ring_audits(vector=share.vector), share, own_code=own_code)
    assert proof["violations"] == []
    assert proof["definitions"]["3.1"] is met
    on_trust = proof["on_trust"]
    assert [one["vector"] for one in on_trust] == ([share.vector] if why else [])
    assert all(why in one["why"] and one["bytes"] == 4 * 2 * 2 * BYTES for one in on_trust)


@pytest.mark.parametrize("like", ["model", "head"])
def test_a_vector_declared_to_hold_a_head_denies_it(like: ModelPart) -> None:
    audits = ring_audits(vector="update")
    for record in audits["peer0"]["rounds"][1:]:
        record["sent"][0]["head_bytes"] = 5160
    proof = privacy(audits, Share("update", like=like), own_code=True)
    assert proof["violations"] == []
    assert proof["on_trust"] == []
    assert proof["head_bytes_sent"] == 2 * 5160
    assert proof["definitions"]["3.1"] is False


@pytest.mark.parametrize("kind", ["told", "noted"])
def test_numbers_are_on_trust_where_own_code_took_part(kind: str) -> None:
    """Built-in code is known. One number is enough, as each round can send another part of a head."""
    audits = ring_audits()
    audits["peer0"]["rounds"][2][kind] = {"norm": 1}
    proof = privacy(audits, own_code=True)
    assert proof["violations"] == []
    assert proof["definitions"]["3.1"] is None
    assert [(one["vector"], one["bytes"]) for one in proof["on_trust"]] == [("norm", 8)]
    assert "; 8 B on trust: norm (8 B); code of your own took part" in proof["counted"]["3.1"]
    assert "`own:Protocol`" in proof["counted"]["3.1"]
    assert privacy(audits)["definitions"]["3.1"] is True


def test_own_code_that_sends_parts_of_the_model_alone_is_named() -> None:
    proof = privacy(ring_audits(), own_code=True)
    assert proof["definitions"]["3.1"] is True
    assert proof["counted"]["3.1"] == (
        "0 B of heads in 7.4 MB of vectors and 0 B of numbers; code of your own took part, `own:Protocol`, and nobody "
        "can check what it wrote into the model"
    )


def talks(rounds: dict[int, set[tuple[str, str]]], **vectors: str) -> dict[str, Any]:
    """What all write down of rounds in which a vector went along these edges, whatever the ring."""
    return {
        id: {
            "rounds": [
                {
                    "round": round,
                    "edges": {other: ["send", "receive"] for other in MEMBERS if other != id},
                    "sent": [
                        {"to": b, "vector": vectors.get(b, "extractor"), "bytes": 8}
                        for a, b in sorted(edges)
                        if a == id
                    ],
                    "received": [
                        {"from": a, "vector": vectors.get(b, "extractor"), "bytes": 8}
                        for a, b in sorted(edges)
                        if b == id
                    ],
                }
                for round, edges in ({0: set(), 1: set(), 2: set()} | rounds).items()
            ]
        }
        for id in MEMBERS
    }


def both(*pairs: tuple[str, str]) -> set[tuple[str, str]]:
    return {*pairs, *((b, a) for a, b in pairs)}


A, B, C, D = MEMBERS


def test_another_partner_each_round_is_no_ring() -> None:
    proof = privacy(talks({1: both((A, B), (C, D)), 2: both((A, C), (B, D)), 3: both((A, D), (B, C))}))
    assert proof["definitions"] == {"3.1": True, "3.2": True, "3.3": False}
    assert proof["counted"]["3.3"] == (
        "peer0 exchanged with 3 others (peer1, peer2 and peer3) in rounds 1 to 3; 12 directed edges"
    )
    assert proof["counted"]["3.2"] == (
        "nobody stood between the others, in a round or over many: peer0, the busiest, was an end of 6 of 12 directed "
        "edges, and 33 % of the bytes that the others sent and got passed through it"
    )


def test_a_hub_may_take_its_rounds() -> None:
    """It collects from two, then from the third, and sends back in rounds of their own."""
    proof = privacy(talks({1: {(B, A), (C, A)}, 2: {(D, A)}, 3: {(A, B)}, 4: {(A, C), (A, D)}}))
    assert proof["definitions"]["3.2"] is False
    assert proof["counted"]["3.2"] == (
        "peer0 was an end of all 6 directed edges in rounds 1 to 4, so it stood between the 3 others"
    )


def test_a_hub_of_one_vector_is_one_whatever_else_is_sent() -> None:
    star, ring = {(A, B), (A, C), (A, D)}, both((B, C), (C, D))
    proof = privacy(talks({1: star, 2: ring}))
    assert proof["definitions"]["3.2"] is False  # of all that went in round 1
    audits = talks({1: star | {(b, a) for a, b in star} | ring})
    assert privacy(audits)["definitions"]["3.2"] is True
    for audit in audits.values():
        for direction in ("sent", "received"):
            for entry in audit["rounds"][1][direction]:
                other = entry.get("to", entry.get("from"))
                entry["vector"] = (
                    "model" if A in (other, next(id for id in MEMBERS if audits[id] is audit)) else "noise"
                )
    assert privacy(audits)["counted"]["3.2"].startswith(
        "peer0 was an end of all 6 directed edges of `model` in round 1,"
    )


def test_two_clients_make_a_server_of_the_third() -> None:
    proof = privacy(talks({1: {(B, A), (C, A)}, 2: {(A, B), (A, C)}}))
    assert proof["definitions"]["3.2"] is False
    for none in ({(A, B), (B, C)}, {(B, A), (B, C)}, both((A, B))):  # handed on, sent both ways round a ring, a pair
        assert privacy(talks({1: none}))["definitions"]["3.2"] is True


def reordered(announced: bool) -> dict[str, Any]:
    """Four on a ring that is put in another order in round 2, after all have told each other so on the one before."""
    new = (A, C, B, D)
    turned = {(new[at - 1], new[at]) for at in range(4)}
    old = {(MEMBERS[at - 1], MEMBERS[at]) for at in range(4)}
    audits = talks({1: old, 2: turned, 3: turned})
    for id, audit in audits.items():
        record = audit["rounds"][2]
        if announced:
            record["orders"] = [[*new]]
            for entry in record["sent"]:
                entry["order"] = 1
        for way, place in (("to", 1), ("from", 0)):
            others = [edge[place] for edge in old if edge[1 - place] == id]
            told = [{way: other, "vector": "order", "bytes": 0, "scalar_bytes": 24} for other in others]
            record["sent" if way == "to" else "received"] += told
    return audits


def test_what_was_sent_before_the_ring_was_reordered_is_judged_by_itself() -> None:
    proof = privacy(reordered(announced=True))
    assert proof["violations"] == []
    assert proof["definitions"] == {"3.1": True, "3.2": True, "3.3": True}
    assert proof["counted"]["3.3"] == (
        "7 directed edges: 4 of the ring, 3 of the ring before it was reordered (extractor and order, 32 B each); no "
        "peer had more than 2 partners in one order of the ring, nor more than 3 in all"
    )


def test_an_order_that_user_code_announces_gives_nobody_more_partners() -> None:
    """Vectors of all orders fit on one ring, or 3.3 is not met; numbers may go before there is an order."""
    audits = reordered(announced=True)
    assert privacy(audits, own_code=True)["counted"]["3.3"].startswith(
        "peer0 exchanged with 3 others (peer1, peer2 and peer3) in rounds 1 to 3, as `own:Protocol` put the ring into "
        "2 orders; 7 directed edges: "
    )
    assert privacy(audits, own_code=True)["definitions"]["3.3"] is False
    for audit in audits.values():
        for entry in (*audit["rounds"][1]["sent"], *audit["rounds"][1]["received"]):
            entry.update(bytes=0, scalar_bytes=8)
    assert privacy(audits, own_code=True)["definitions"]["3.3"] is True


def test_another_order_of_which_nobody_was_told_is_no_ring() -> None:
    assert privacy(reordered(announced=False))["definitions"]["3.3"] is False


def test_an_order_that_only_one_peer_says_to_have_been_announced() -> None:
    audits = reordered(announced=True)
    del audits[C]["rounds"][2]["orders"]
    assert reasons(audits)[:1] == ["peer0 and peer2 do not say alike into which order the ring was put in round 2"]


def test_books_that_differ() -> None:
    audits = ring_audits()
    audits["peer1"]["rounds"][1]["received"][0]["bytes"] -= 4
    (violation,) = privacy(audits)["violations"]
    assert (violation["from"], violation["to"], violation["round"]) == ("peer0", "peer1", 1)
    assert violation["reason"] == f"peer0 counted {BYTES} bytes sent, peer1 {BYTES - 4} received"


def test_scalars_that_nobody_wrote_down_as_sent() -> None:
    """A record has no tensor bytes at all: only its scalars show what went over an edge."""
    audits = ring_audits()
    send(audits, "peer0", "peer1", vector="proportions", bytes=0, scalar_bytes=80)
    assert reasons(audits) == ["peer0 counted 80 bytes of scalars sent, peer1 0 received"]
    audits["peer1"]["rounds"][2]["received"][-1]["scalar_bytes"] = 80
    assert reasons(audits) == []


def test_received_but_never_written_down_as_sent() -> None:
    audits = ring_audits()
    del audits["peer3"]["rounds"][2]["sent"][0]
    assert reasons(audits) == [f"peer3 counted 0 bytes sent, peer2 {BYTES} received"]


def test_stranger() -> None:
    audits = ring_audits()
    send(audits, "peer0", "server")
    assert "the receiver is not a member of the federation" in reasons(audits)
    assert privacy(audits)["definitions"]["3.2"] is False


def test_missing_audit_proves_nothing_either_way() -> None:
    audits = ring_audits()
    del audits["peer2"]
    proof = privacy(audits)
    assert proof["violations"] == []
    assert proof["definitions"] == {"3.1": None, "3.2": None, "3.3": None}
    assert proof["unknown"] == ["peer2"]


@pytest.mark.parametrize("round", [0, 1])
def test_audit_that_lacks_a_round_proves_nothing(round: int) -> None:
    audits = ring_audits()
    for audit in audits.values():
        del audit["rounds"][round]
    assert reasons(audits) == [f"{id}'s audit lacks rounds, so nothing is proven: {round}" for id in MEMBERS]
    assert not any(privacy(audits)["definitions"].values())


def test_a_record_that_is_missing_is_told_once() -> None:
    audits = ring_audits()
    del audits["peer1"]["rounds"][1]
    assert reasons(audits) == ["peer1's audit lacks rounds, so nothing is proven: 1"]


def test_several_messages_of_one_vector_are_compared_by_their_sum() -> None:
    audits = ring_audits()
    whole = audits["peer0"]["rounds"][1]["sent"][0]
    audits["peer0"]["rounds"][1]["sent"][:1] = [whole | {"bytes": 1000}, whole | {"bytes": BYTES - 1000}]
    assert reasons(audits) == []


@given(st.permutations(range(7)), st.booleans())
def test_every_ring_order_fits_and_no_chord_does(order: list[int], both: bool) -> None:
    members = [f"peer{n}" for n in order]
    edges = {(members[i - 1], members[i]) for i in range(7)}
    edges |= {(b, a) for a, b in edges} if both else set()
    assert not why_no_ring(edges, sorted(members))
    assert why_no_ring(edges | {(members[0], members[3])}, members)


@pytest.mark.parametrize(
    ("edges", "fits"),
    [
        (set(), True),
        ({("a", "b"), ("b", "a")}, True),
        ({("a", "b"), ("c", "d")}, True),
        ({("a", "b"), ("b", "c"), ("c", "a")}, False),
        ({("a", "b"), ("a", "c"), ("a", "d")}, False),
        ({("a", "x")}, False),
    ],
)
def test_edges_on_a_ring_of_five(edges: set[tuple[str, str]], fits: bool) -> None:
    assert (not why_no_ring(edges, "abcde")) is fits


def test_star_is_a_server_and_complete_graph_is_not() -> None:
    star = {("hub", id) for id in "abc"} | {(id, "hub") for id in "abc"}
    assert hub(dict.fromkeys(star, 1)) == "hub"
    assert hub({(a, b): 1 for a in "abcd" for b in "abcd" if a != b}) is None


@pytest.mark.parametrize("size", [1, BYTES])
def test_an_edge_that_avoids_it_hides_no_server(size: int) -> None:
    star = dict.fromkeys(both((A, B), (A, C), (A, D)), BYTES)
    assert hub(star | dict.fromkeys(both((B, C)), size)) == A
    assert hub(dict.fromkeys(both((A, B), (A, C)), BYTES) | {(B, C): size // BYTES, (C, B): 1}) == A


def test_three_on_a_ring_may_give_unequally() -> None:
    assert hub(dict.fromkeys(both((A, B), (A, C)), 3) | dict.fromkeys(both((B, C)), 1)) is None


@pytest.mark.parametrize(("vector", "met"), [("extractor", None), ("model", False)])
def test_what_a_codec_made_of_a_vector_is_on_trust(vector: str, met: bool | None) -> None:
    audits, declared = ring_audits(vector=vector), Declarations("fibfl", (Share(vector),), ())
    for record in [record for audit in audits.values() for record in audit["rounds"]] if vector == "model" else []:
        record["sent"] = [entry | {"head_bytes": 8} for entry in record["sent"]]
    coded = PrivacyDeclaration(declared, ("own:Codec",), Coded.model_construct(kind="codec", name="own:Codec"))
    proof = proof_of.privacy(Views(MEMBERS, 2), as_read(audits), coded)
    why = "encoded by a codec of your own, which nobody can check"
    assert [one["why"] for one in proof["on_trust"]] == ([why] if vector == "extractor" else [])
    assert proof["definitions"]["3.1"] is met


def test_without_everybodys_audit_a_definition_is_denied_or_not_known() -> None:
    audits = ring_audits()
    promise = PrivacyDeclaration(Declarations("a protocol", (EXTRACTOR,), ()))
    del audits[MEMBERS[-1]]["rounds"][2]
    proof = proof_of.privacy(Views(MEMBERS, 2), as_read(audits), promise, unfinished=[MEMBERS[-1]])
    assert (proof["violations"], proof["definitions"]) == ([], {"3.1": None, "3.2": None, "3.3": None})
    audits[MEMBERS[0]]["rounds"][1]["sent"][0]["head_bytes"] = 8
    proof = proof_of.privacy(Views(MEMBERS, 2), as_read(audits), promise, unfinished=[MEMBERS[-1]])
    assert proof["definitions"] == {"3.1": False, "3.2": None, "3.3": None}
    proof = proof_of.privacy(Views(MEMBERS, 2), as_read(audits), promise)
    assert proof["definitions"] == {"3.1": False, "3.2": False, "3.3": False}


def test_of_what_is_on_trust_no_more_is_printed_than_anybody_reads() -> None:
    """An audit of 1 MB, from another machine, had the summary print 6 MB."""
    trusted: list[UnverifiedBytes] = [{"vector": f"told{n}", "why": "z" * 1000, "bytes": 8} for n in range(1000)]
    said = privacy_lines(
        {
            "head_bytes_sent": 0,
            "edges_used": [],
            "violations": [],
            "on_trust": trusted,
            "definitions": {"3.1": None},
            "counted": {"3.1": "z" * 1_000_000},
        }
    )
    assert len(said) < 60
    assert max(map(len, said)) <= MAX_MESSAGE_CHARACTERS + 1
    assert said[-1] == "  on trust, 950 more in summary.json"

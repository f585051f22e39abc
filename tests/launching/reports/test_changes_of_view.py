"""A run whose members change: whose rounds count, what the audits prove, and what is said of it."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audits_written import as_read

from launcher.commands.membership import last_left
from launcher.history import PeerHistory
from launcher.reports import privacy as proof_of
from launcher.reports import summary_json
from launcher.reports.peer_files import decided_views
from launcher.reports.privacy import PrivacyDeclaration
from launcher.reports.summary import TimeSpent, summarise
from launcher.reports.summary_json import Privacy
from launcher.reports.summary_text import view_changes
from launcher.views import Views, describe_change
from peer.errors import FailedError
from peer.protocols.declarations import Declarations, Share
from peer.spec.federation import Spec
from peer.spec.loading import load_spec
from peer.telemetry.events import ViewDecided
from peer.views.view import View, ViewRounds

IDS = ("a", "b", "c", "d")
ROUNDS = 9
ALL = View(0, IDS, first=0)
LOST = View(1, ("a", "b", "d"), first=4, reason="c silent for 3 s")
BACK = View(2, IDS, first=7, planned=True, entrants=(("c", 2),), reason="c taken in")
AGAIN = View(3, IDS, first=7, entrants=(("c", 2),), reason="c taken in")
RUN = Views(IDS, ROUNDS, (LOST, BACK, AGAIN))
PROMISE = PrivacyDeclaration(Declarations("a protocol", (Share("extractor"),), ()))


def test_every_round_counts_in_the_last_view_that_played_it() -> None:
    assert RUN.spans == [ViewRounds(ALL, 0, 3), ViewRounds(LOST, 4, 6), ViewRounds(AGAIN, 7, 9)]
    assert RUN.absences() == {"c": [(4, 6)]}
    assert RUN.changes() == [(4, "c lost"), (7, "c back")]
    assert not RUN.exact
    assert RUN.finishers == [*IDS]


def test_who_is_outside_at_the_end_does_not_have_to_finish() -> None:
    assert Views(IDS, ROUNDS, (LOST,)).finishers == ["a", "b", "d"]
    late = View(1, ("a", "b", "d"), first=ROUNDS + 1)
    assert Views(IDS, ROUNDS, (late,)).finishers == ["a", "b", "d"]
    assert Views(IDS, ROUNDS, (LOST, View(2, IDS, ROUNDS + 1, planned=True))).finishers == ["a", "b", "d"]


def test_a_result_counts_unless_its_rounds_are_void() -> None:
    assert Views(IDS, ROUNDS).counts(IDS)
    lost = Views(IDS, ROUNDS, (LOST,))
    assert lost.counts(["d", "a", "b"])
    assert not lost.counts(IDS), "c had finished, and was left out of rounds that were played again"
    late = Views(IDS, ROUNDS, (View(1, ("a", "b", "d"), first=ROUNDS + 1),))
    assert late.counts(IDS)
    assert late.counts(["a", "b", "d"]), "they have entered a view that has no round"


def test_a_result_is_exact_if_all_have_only_gone_back() -> None:
    assert Views(IDS, ROUNDS, (View(1, IDS, first=5),)).exact
    assert not Views(IDS, ROUNDS, (View(1, IDS, first=5, entrants=(("c", 4),)),)).exact
    assert Views(IDS, ROUNDS, (LOST, View(2, IDS, first=4))).exact


def test_what_a_change_is_in_words() -> None:
    assert describe_change(ALL, View(1, ("a", "b"), 3)) == "c and d lost"
    assert describe_change(ALL, View(1, ("b", "c", "d"), 3, entrants=(("b", 1),))) == "a lost, b taken in anew"
    assert describe_change(ALL, View(1, IDS, 3)) == ""


def test_the_view_with_which_one_left_is_the_first_that_has_been_without_it_ever_since() -> None:
    views = [LOST, BACK, replace(LOST, number=3), View(4, ("a", "b"), first=8, reason="d silent for 3 s")]
    assert last_left("c", views) == views[2]
    assert last_left("c", views[:1]) == LOST


def line(view: View, id: str, round: int, **parts: Any) -> dict[str, Any]:
    """What a peer writes that exchanges a vector with both neighbours on the ring of a view."""
    at = view.members.index(id)
    around = dict.fromkeys([view.members[at - 1], view.members[(at + 1) % len(view.members)]])
    others = [*around] if round else []
    return {
        "round": round,
        **({"view": view.number} if view.number else {}),
        "edges": {other: ["send", "receive"] for other in others},
        "sent": [{"to": other, "vector": "extractor", "bytes": 8, "head_bytes": 0} for other in others],
        "received": [{"from": other, "vector": "extractor", "bytes": 8} for other in others],
        **parts,
    }


def audits() -> dict[str, Any]:
    """The audits of a run in which c was killed in round 4; a and b had been in round 5, which became void."""
    told: dict[str, Any] = {id: {"rounds": []} for id in IDS}
    for span in RUN.spans:
        for round in span.rounds:
            for id in span.view.members:
                told[id]["rounds"].append(line(span.view, id, round))
    for id in ("a", "b", "d"):
        told[id]["rounds"].append(line(ALL, id, 4))
    cut = line(ALL, "a", 5, interrupted=True, received=[])
    told["a"]["rounds"].append(cut)
    late = line(ALL, "b", 5, interrupted=True, sent=[])
    late["received"] = [one for one in late["received"] if one["from"] == "a"]
    told["b"]["rounds"].append(late)
    return told


def privacy(views: Views, told: dict[str, Any], promise: PrivacyDeclaration) -> Privacy:
    return proof_of.privacy(views, as_read(told), promise)


def reasons(told: dict[str, Any]) -> list[str]:
    return [one["reason"] for one in privacy(RUN, told, PROMISE)["violations"]]


def record(told: dict[str, Any], id: str, view: int, round: int) -> dict[str, Any]:
    found: dict[str, Any] = next(
        one for one in told[id]["rounds"] if (one.get("view", 0), one["round"]) == (view, round)
    )
    return found


def test_a_run_with_changes_of_view_is_still_proven() -> None:
    proof = privacy(RUN, audits(), PROMISE)
    assert proof["violations"] == []
    assert proof["definitions"] == {"3.1": True, "3.2": True, "3.3": True}
    assert "unknown" not in proof
    assert ["b", "d"] in proof["edges_used"]  # neighbours while c was away


def test_a_round_is_judged_against_the_ring_of_its_own_view() -> None:
    told = audits()
    sent, got = record(told, "b", 1, 5), record(told, "d", 1, 5)
    sent["view"] = got["view"] = 3  # where b and d are no neighbours
    assert privacy(RUN, told, PROMISE)["definitions"]["3.3"] is False


def test_nobody_sends_to_who_is_no_member_of_the_view() -> None:
    told = audits()
    sent = record(told, "b", 1, 5)
    sent["edges"]["c"] = ["send"]
    sent["sent"].append({"to": "c", "vector": "extractor", "bytes": 8, "head_bytes": 0})
    (found,) = privacy(RUN, told, PROMISE)["violations"]
    assert (found["reason"], found["view"], found["round"]) == ("the receiver is not a member of view 1", 1, 5)


def test_void_rounds_count_too() -> None:
    told = audits()
    record(told, "a", 0, 5)["sent"][0]["head_bytes"] = 8
    proof = privacy(RUN, told, PROMISE)
    assert (proof["head_bytes_sent"], proof["definitions"]["3.1"]) == (8, False)


def test_a_view_of_which_nobody_tells_has_no_members() -> None:
    told = audits()
    for id in IDS:
        told[id]["rounds"].append(line(View(4, IDS, 9), id, 9))
    assert {reason for reason in reasons(told) if "view 4" in reason}


def test_a_round_that_a_lost_peer_could_not_write_down_is_told_by_its_neighbours() -> None:
    told = audits()
    for round in (3, 4):
        for id in ("b", "d"):
            assert record(told, id, 0, round)["received"]
    told["c"]["rounds"] = [one for one in told["c"]["rounds"] if one["round"] != 3]
    proof = privacy(RUN, told, PROMISE)
    assert proof["violations"] == []
    assert ["c", "b"] in proof["edges_used"]
    for id in ("b", "d"):
        for entry in record(told, id, 0, 3)["received"]:
            entry["vector"] = "unheard of" if entry["from"] == "c" else entry["vector"]
    assert privacy(RUN, told, PROMISE)["definitions"]["3.1"] is None


@pytest.mark.parametrize(("id", "view", "round"), [("c", 0, 1), ("c", 3, 8), ("a", 0, 3), ("b", 1, 6)])
def test_rounds_that_should_be_there_are_missed(id: str, view: int, round: int) -> None:
    told = audits()
    told[id]["rounds"].remove(record(told, id, view, round))
    assert f"{id}'s audit lacks rounds, so nothing is proven: {round}" in reasons(told)


def whole(views: Views) -> dict[str, Any]:
    """The audits of a run with these views, with all rounds that count."""
    return {
        id: {
            "rounds": [
                line(span.view, id, round) for span in views.spans for round in span.rounds if id in span.view.members
            ]
        }
        for id in IDS
    }


def reasons_of(views: Views, told: dict[str, Any]) -> list[str]:
    return [one["reason"] for one in privacy(views, told, PROMISE)["violations"]]


def test_an_audit_that_was_lost_with_the_directory_proves_nothing_either_way() -> None:
    views = Views(IDS, 20, (View(1, ("a", "b", "d"), 12), View(2, IDS, 15, True, (("c", -1),))))
    told = whole(views)
    assert privacy(views, told, PROMISE)["violations"] == []
    told["c"]["rounds"] = [one for one in told["c"]["rounds"] if one.get("view") == 2]
    found = privacy(views, told, PROMISE)
    assert found["definitions"] == {"3.1": None, "3.2": None, "3.3": None}
    assert (found["violations"], found["unknown"]) == ([], ["c"])
    held = replace(views, later=(views.later[0], replace(views.later[1], entrants=(("c", 3),))))
    assert reasons_of(held, told) == ["c's audit lacks rounds, so nothing is proven: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"]


def test_who_returned_with_nothing_cannot_choose_what_its_audit_lacks() -> None:
    lost, back = View(1, ("a", "b", "d"), 12), View(2, IDS, 15, True, (("c", -1),))
    again = View(3, IDS, 10, entrants=(("c", -1),))
    forged = View(4, IDS, 21, entrants=(("c", -1),))
    for later, view, dropped in (
        ((lost, back), 0, range(5, 6)),  # the rest of what it had before is there
        ((lost, back), 2, range(20, 21)),
        ((lost, back, replace(again, entrants=())), 3, range(10, 15)),  # all went back to before its return
        ((lost, back, replace(again, entrants=()), forged), 3, range(12, 13)),
    ):
        views = Views(IDS, 20, later)
        told = whole(views)
        kept = [one for one in told["c"]["rounds"] if not (one.get("view", 0) == view and one["round"] in dropped)]
        assert len(kept) == len(told["c"]["rounds"]) - len(dropped)
        told["c"]["rounds"] = kept
        assert reasons_of(views, told) == [
            f"c's audit lacks rounds, so nothing is proven: {', '.join(map(str, dropped))}"
        ], later


def test_of_an_interrupted_round_not_all_arrives_and_never_more() -> None:
    told = audits()
    record(told, "a", 0, 5).pop("interrupted")
    assert reasons(told) == []
    record(told, "b", 0, 5)["received"][0]["bytes"] = 9
    assert reasons(told) == ["a counted 8 bytes sent, b 9 received"]


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    file = tmp_path / "four.yaml"
    ring = [{"id": id, "address": f"127.0.0.1:{7700 + at}"} for at, id in enumerate(IDS)]
    content = {"name": "four", "rounds": ROUNDS, "protocol": "fibfl", "data": {"name": "digits"}, "ring": ring}
    file.write_text(json.dumps({**content, "on_loss": "bypass"}))
    return load_spec(file)


def leave(directory: Path, views: tuple[View, ...], finished: tuple[str, ...] = IDS) -> None:
    """The files of a run's peers, with accuracy 0.5 in each round while c is away, and else 0.7."""
    told = audits()
    quiet = {"sent_to": {}, "seconds": {}, "bytes_sent": 1, "bytes_received": 1, "tensor_bytes_sent": 1}
    for id in IDS:
        (directory / id).mkdir(parents=True)
        (directory / id / "audit.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told[id]["rounds"]))
        lines = [{"time": 1.0, **ViewDecided(**view.as_json()).as_json()} for view in views]
        (directory / id / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
        rounds = [round for round in range(1, ROUNDS + 1) if id != "c" or not 4 <= round <= 6]
        history = [{"round": round, "accuracy": {"matched": 0.5 if 4 <= round <= 6 else 0.7}} for round in rounds]
        result = {"id": id, "samples": 1, "rounds": ROUNDS, "accuracy": {"matched": 0.7}, "model_sha256": "0" * 64}
        ring = views[-1].members if views else IDS
        result |= {**quiet, "ring": ring, "ring_cost": {"before": None, "after": None}, "history": history}
        if id in finished:
            (directory / id / "result.json").write_text(json.dumps(result))


def test_the_summary_says_where_and_whose_data(spec: Spec, tmp_path: Path) -> None:
    leave(tmp_path / "run", RUN.later)
    summary = summarise(spec, tmp_path / "run", TimeSpent(1, 0))
    assert view_changes(summary, spec) == [
        "with changes of view at rounds 4 and 7: c lost; c back",
        "  without the data of c: rounds 4 to 6",
        "  mean matched accuracy of those who finished: 0.7000 after round 3 with 4 peers, 0.5000 after round 6 with "
        "3 peers, 0.7000 after round 9 with 4 peers",
    ]
    content = json.loads(summary_json.dump(summary))
    assert content["exact"] is False
    assert content["absences"] == {"c": [[4, 6]]}
    assert [one["reason"] for one in content["views"]] == ["c silent for 3 s", "c taken in", "c taken in"]
    assert content["privacy"]["violations"] == []
    summary_json.write(tmp_path / "summary.json", summary)
    assert summary_json.read(tmp_path / "summary.json") == summary


def test_who_was_not_taken_in_again_is_named_and_in_no_figure(spec: Spec, tmp_path: Path) -> None:
    leave(tmp_path / "run", (LOST,), finished=("a", "b", "d"))
    summary = summarise(spec, tmp_path / "run", TimeSpent(1, 0))
    assert [peer.id for peer in summary.per_peer] == ["a", "b", "d"]
    assert (summary.outside, summary.missing) == (["c"], {})
    assert "  without the data of c: rounds 4 to 9; it was not taken in again, and is in no figure" in view_changes(
        summary, spec
    )


def test_a_result_from_before_the_last_change_is_none(spec: Spec, tmp_path: Path) -> None:
    leave(tmp_path / "run", RUN.later)
    stale = json.loads((tmp_path / "run" / "b" / "result.json").read_text())
    (tmp_path / "run" / "b" / "result.json").write_text(json.dumps({**stale, "ring": ["a", "b", "d"]}))
    with pytest.raises(FailedError, match="no result of b"):
        summarise(spec, tmp_path / "run", TimeSpent(1, 0))


def test_without_changes_nothing_is_said_of_views(spec: Spec, tmp_path: Path) -> None:
    leave(tmp_path / "run", ())
    summary = summarise(spec, tmp_path / "run", TimeSpent(1, 0))
    assert view_changes(summary, spec) == []
    assert not {"views", "exact", "absences"} & json.loads(summary_json.dump(summary)).keys()


def test_a_view_that_one_peer_cannot_tell_of_another_tells(spec: Spec, tmp_path: Path) -> None:
    leave(tmp_path, RUN.later)
    places = {id: tmp_path / id for id in IDS}
    (tmp_path / "a" / "events.jsonl").write_text('{"event": "view", "number": 1}\n\x00"view"\n')
    (tmp_path / "b" / "events.jsonl").unlink()
    assert decided_views(spec, places, ROUNDS) == RUN


def test_two_views_of_one_number_are_refused(spec: Spec, tmp_path: Path) -> None:
    leave(tmp_path, (LOST,))
    other = deepcopy(LOST.as_json()) | {"first": 5}
    for id in ("c", "d"):
        (tmp_path / id / "events.jsonl").write_text(json.dumps({"time": 1.0, "event": "view", **other}) + "\n")
    with pytest.raises(FailedError, match="a and c tell of different views of number 1"):
        decided_views(spec, {id: tmp_path / id for id in IDS}, ROUNDS)


@pytest.mark.parametrize("number", [1, 3])
def test_a_view_of_which_one_liar_tells_alone_counts_for_nothing(spec: Spec, tmp_path: Path, number: int) -> None:
    leave(tmp_path, RUN.later)
    forged = LOST.as_json() | {"number": number, "members": ["d"], "first": 5, "expelled": ["a", "b", "c"]}
    with (tmp_path / "d" / "events.jsonl").open("a") as events:
        events.write(json.dumps({"time": 1.0, "event": "view", **forged}) + "\n")
    assert decided_views(spec, {id: tmp_path / id for id in IDS}, ROUNDS) == RUN


def test_what_an_earlier_version_kept_of_views_proves_nothing_and_spoils_nothing(spec: Spec, tmp_path: Path) -> None:
    leave(tmp_path, RUN.later)
    (tmp_path / "a" / "views.json").write_text('{"acceptor": {"chain": [], "slots": []}, "entered": 0, "promised": -1}')
    places = {id: tmp_path / id for id in IDS}
    assert decided_views(spec, places, ROUNDS) == RUN
    (tmp_path / "a" / "views.json").write_text('{"version": 99}')
    with pytest.raises(FailedError, match="a later release of dfl has written it"):
        decided_views(spec, places, ROUNDS)


def test_a_view_that_no_peer_decides_spoils_no_summary(spec: Spec, tmp_path: Path) -> None:
    leave(tmp_path, RUN.later)
    forged = LOST.as_json() | {"number": 9, "members": ["No Peer's Id"], "reason": "\x1b[2J"}
    with (tmp_path / "d" / "events.jsonl").open("a") as events:
        events.write(json.dumps({"time": 1.0, "event": "view", **forged}) + "\n")
    assert decided_views(spec, {id: tmp_path / id for id in IDS}, ROUNDS) == RUN


def test_pauses_between_the_lives_of_a_peer_are_no_part_of_them(tmp_path: Path) -> None:
    started = {"event": "started", "schema": 1, "version": "1", "id": "a", "federation": "f", "protocol": "fibfl"}
    events = [
        started | {"rounds": 3, "time": 1.0},
        {"event": "done", "time": 5.0},
        started | {"rounds": 3, "time": 1000.0},
        {"event": "done", "time": 1002.0},
    ]
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in events))
    assert PeerHistory.read("a", tmp_path).alive_seconds == 4.0 + 2.0


def test_a_new_life_in_the_next_view_is_no_restart(tmp_path: Path) -> None:
    joining = {"time": 1.0, "event": "state", "state": "joining", "round": 0}
    view = {"time": 1.0, **ViewDecided(**LOST.as_json()).as_json()}
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in (joining, view, joining, joining)))
    assert PeerHistory.read("a", tmp_path).restarts == 1

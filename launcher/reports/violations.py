"""Bytes that left against the protocol's own declaration, and audits that do not prove that none did."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from launcher.reports.flows import Audit, Flow, entries, records, sum_flows
from launcher.reports.summary_json import Violation
from launcher.views import Views

AHEAD = 5
"""Rounds by which a neighbour may be further than what a peer has on disk, and the one that it is in."""


def missing(views: Views, audits: Mapping[str, Audit]) -> Iterator[Violation]:
    """Members with an audit that lacks rounds of a view; round 0 is the set-up and always written down."""
    whole, lacking = records(audits, whole=True), dict[str, list[int]]()
    for span in views.spans:
        lost = views.lost_after(span)
        for id in [id for id in span.view.members if id in audits]:
            absent = [round for round in span.rounds if (id, span.view.number, round) not in whole]
            if id in lost:
                absent = without_the_last(absent, span.last, AHEAD * len(lost))
            lacking.setdefault(id, []).extend(absent)
    for id in [id for id in views.ids if lacking.get(id)]:
        named = ", ".join(map(str, lacking[id][:10]))
        yield violation((None, id), 0, f"{id}'s audit lacks rounds, so nothing is proven: {named}")


def without_the_last(absent: list[int], last: int, most: int) -> list[int]:
    """The rounds but for the unbroken row of them that ends with `last`, if it is of `most` rounds at most."""
    row = 0
    while row < len(absent) and absent[-1 - row] == last - row:
        row += 1
    return absent[: len(absent) - row] if row <= most else absent


def disagreed(audits: Mapping[str, Audit]) -> Iterator[Violation]:
    """Orders of the ring that one peer says to have been announced in a round, and another one does not."""
    said: dict[tuple[int, int], tuple[str, Any]] = {}
    for id, audit in audits.items():
        for record in (record for record in audit["rounds"] if not record.get("interrupted")):
            at = record.get("view", 0), record["round"]
            first, orders = said.setdefault(at, (id, record.get("orders", [])))
            if orders != record.get("orders", []):
                reason = f"{first} and {id} do not say alike into which order the ring was put in round {at[1]}"
                yield violation((None, id), 0, reason)


def undeclared(views: Views, audits: Mapping[str, Audit], private: Callable[[int], bool]) -> Iterator[Violation]:
    """Lines of an audit against what the protocol declared for that round."""
    for id, record, entry in entries(audits, "sent"):
        flow = (record.get("view", 0), record["round"], id, entry["to"], entry["vector"])
        for reason in reasons(views, id, record, entry):
            yield violation(flow, entry["bytes"], reason)
        if entry.get("head_bytes", 0) and private(record["round"]):
            yield violation(flow, entry["bytes"], f"{entry['head_bytes']} bytes of a private head")
    for id, record, entry in entries(audits, "received"):
        if "receive" not in record["edges"].get(entry["from"], ()):
            flow = (record.get("view", 0), record["round"], entry["from"], id, entry["vector"])
            yield violation(flow, entry["bytes"], f"{id} was not to receive from {entry['from']} in this round")


def reasons(views: Views, sender: str, record: Mapping[str, Any], entry: Mapping[str, Any]) -> Iterator[str]:
    number = record.get("view", 0)
    members = views.members_of(number)
    if entry["to"] not in members:
        yield f"the receiver is not a member of {f'view {number}' if number else 'the federation'}"
    if sender not in members:
        yield f"the sender is not a member of {f'view {number}' if number else 'the federation'}"
    if "send" not in record["edges"].get(entry["to"], ()):
        yield "the edge was not authorised in this round"


def mismatches(audits: Mapping[str, Audit], kind: str) -> Iterator[Violation]:
    """Flows whose two ends counted differently; where one end left no record there is nothing to compare.

    Of an interrupted round not all that was sent had arrived; and its sender, if it was started again meanwhile, has
    not counted what it had sent before.
    """
    sent, received = sum_flows(audits, "sent", kind), sum_flows(audits, "received", kind)
    recorded = records(audits, whole=False)
    whole = records(audits, whole=True)
    for flow in sorted(set(sent) | set(received)):
        view, round, source, target, _ = flow
        ends = (source, view, round), (target, view, round)
        less = ends[1] not in whole and received[flow] < sent[flow]
        if {*ends} <= recorded and ends[0] in whole and not less and sent[flow] != received[flow]:
            what = "bytes" if kind == "bytes" else "bytes of scalars"
            reason = f"{source} counted {sent[flow]} {what} sent, {target} {received[flow]} received"
            yield violation(flow, sent[flow], reason)


def violation(flow: Flow | tuple[None, str], size: int, reason: str) -> Violation:
    if flow[0] is None:
        return {"round": None, "from": flow[1], "to": None, "vector": None, "bytes": size, "reason": reason}
    view, round, source, target, vector = flow
    found: Violation = {
        "round": round,
        "from": source,
        "to": target,
        "vector": vector,
        "bytes": size,
        "reason": reason,
    }
    return {**found, "view": view} if view else found

"""All audits together as a proof of FIRMA's Definitions 3.1 to 3.3 for one run.

3.1, head privacy: no byte of a head left its peer. Where something left whose content nobody can check, this can
     neither be said nor denied: then it is None, and `on_trust` says what it rests on (`launcher.reports.trust`).
3.2, no server: both ends of every edge are members, and no member is a hub, that is, the one through whom all
     others talk. (A ring neighbour that blends two vectors is no server by the paper's own Proposition 5.6.)
3.3, ring: all edges along which a vector went in a round fit on one ring, so that each peer talked to two
     neighbours at most. The order may change between rounds, and within one by records.

Whether the definitions are met is a property of the protocol. A *violation* is a byte that left against the
protocol's own declaration: an edge not authorised in that round, a head it calls private. What a sender wrote
down must be what its receiver wrote down: a difference is a violation too, and so is an audit that lacks rounds.

An audit that is not there proves nothing either way. Of a run whose peers' audits are not all at hand, a definition can
be denied and not proven: then it is None.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from launcher.reports.definitions import Edge, fit_on_a_ring, server_free
from launcher.reports.summary_json import Privacy, Violation
from launcher.reports.trust import Promise

Audit = Mapping[str, Any]
Flow = tuple[int, str, str, str]
"""Round, sender, receiver, name of the vector."""


def privacy(
    members: Sequence[str],
    audits: Mapping[str, Audit],
    rounds: int,
    promise: Promise,
    unfinished: Collection[str] = (),
) -> Privacy:
    """The `privacy` block of summary.json from every member's audit of a run of so many rounds.

    unfinished: members whose audits may lack rounds; nothing is said against them, nor against those without an audit.

    Returns head_bytes_sent (bytes), edges_used ([from, to] pairs, in the members' order), violations (each
    {round, from, to, vector, bytes, reason}), on_trust (each {vector, why, bytes}) and definitions ({"3.1": met,
    "3.2": met, "3.3": met}; one is None where nothing speaks against it but a member is unknown
    or, of 3.1, something is on trust). unknown has the members without a whole audit, if there are any.
    """
    private = promise.declared.heads_stay
    on_trust = promise.on_trust(audits)
    carried = [*flows_that_carry(audits)]
    unknown = [id for id in members if id in unfinished or id not in audits]
    violations = [
        *(gaps := list(missing([id for id in members if id not in unknown], audits, rounds))),
        *undeclared(members, audits, private),
        *mismatches(audits, "bytes"),
        *mismatches(audits, "scalar_bytes"),
    ]
    head = sum(entry.get("head_bytes", 0) for _, _, entry in entries(audits, "sent"))
    place = {id: position for position, id in enumerate(members)}
    edges_used = sorted(
        {(source, target) for _, source, target, _ in carried},
        key=lambda edge: [(place.get(id, len(place)), id) for id in edge],
    )
    used = edges_by(carried, lambda round, vector: (round,))
    by_vector = edges_by(carried, lambda round, vector: (round, vector))

    def verdict(holds: bool, *doubts: object) -> bool | None:
        return None if not gaps and holds and any(doubts) else not gaps and holds

    proof: Privacy = {
        "head_bytes_sent": head,
        "edges_used": [list(edge) for edge in edges_used],
        "violations": violations,
        "on_trust": on_trust,
        "definitions": {
            "3.1": verdict(head == 0, unknown, on_trust),
            "3.2": verdict(all(server_free(edges, members) for edges in used), unknown),
            "3.3": verdict(all(fit_on_a_ring(edges, members) for edges in by_vector), unknown),
        },
    }
    return {**proof, "unknown": unknown} if unknown else proof


def entries(audits: Mapping[str, Audit], direction: str) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """(whose audit, the round's record, one line of it) for every line of "sent" or "received"."""
    for id, audit in audits.items():
        for record in audit["rounds"]:
            for entry in record[direction]:
                yield id, record, entry


def flows_that_carry(audits: Mapping[str, Audit]) -> Iterator[Flow]:
    """Every sender's flows but the empty ones: an empty message says that nothing is sent, and uses no edge."""
    for source, record, entry in entries(audits, "sent"):
        if entry["bytes"] or entry.get("scalar_bytes", 0):
            yield record["round"], source, entry["to"], entry["vector"]


def sum_flows(audits: Mapping[str, Audit], direction: str, kind: str = "bytes") -> Counter[Flow]:
    """Bytes by round, sender, receiver and vector, as the senders or as the receivers counted them.

    kind: "bytes" of tensors, or "scalar_bytes", those of the numbers beside a tensor or in a record.
    """
    flows: Counter[Flow] = Counter()
    for id, record, entry in entries(audits, direction):
        source, target = (id, entry["to"]) if direction == "sent" else (entry["from"], id)
        flows[record["round"], source, target, entry["vector"]] += entry.get(kind, 0)
    return flows


def missing(members: Sequence[str], audits: Mapping[str, Audit], rounds: int) -> Iterator[Violation]:
    """Members with an audit that lacks rounds; round 0 is the set-up and always written down."""
    for id in members:
        lacking = set(range(rounds + 1)) - {record["round"] for record in audits[id]["rounds"]}
        if lacking:
            named = ", ".join(map(str, sorted(lacking)[:10]))
            yield violation((None, id, None, None), 0, f"{id}'s audit lacks rounds, so nothing is proven: {named}")


def undeclared(
    members: Sequence[str], audits: Mapping[str, Audit], private: Callable[[int], bool]
) -> Iterator[Violation]:
    """Lines of an audit against what the protocol declared for that round."""
    for id, record, entry in entries(audits, "sent"):
        flow = (record["round"], id, entry["to"], entry["vector"])
        for reason in reasons(record, entry, members, private):
            yield violation(flow, entry["bytes"], reason)
    for id, record, entry in entries(audits, "received"):
        if "receive" not in record["edges"].get(entry["from"], ()):
            flow = (record["round"], entry["from"], id, entry["vector"])
            yield violation(flow, entry["bytes"], f"{id} was not to receive from {entry['from']} in this round")


def reasons(
    record: Mapping[str, Any],
    entry: Mapping[str, Any],
    members: Sequence[str],
    private: Callable[[int], bool],
) -> Iterator[str]:
    if entry["to"] not in members:
        yield "the receiver is not a member of the federation"
    if "send" not in record["edges"].get(entry["to"], ()):
        yield "the edge was not authorised in this round"
    if entry.get("head_bytes", 0) and private(record["round"]):
        yield f"{entry['head_bytes']} bytes of a private head"


def mismatches(audits: Mapping[str, Audit], kind: str) -> Iterator[Violation]:
    """Flows whose two ends counted differently; where one end left no record there is nothing to compare."""
    sent, received = sum_flows(audits, "sent", kind), sum_flows(audits, "received", kind)
    recorded = {(id, record["round"]) for id, audit in audits.items() for record in audit["rounds"]}
    for flow in sorted(set(sent) | set(received)):
        round, source, target, _ = flow
        if {(source, round), (target, round)} <= recorded and sent[flow] != received[flow]:
            what = "bytes" if kind == "bytes" else "bytes of scalars"
            reason = f"{source} counted {sent[flow]} {what} sent, {target} {received[flow]} received"
            yield violation(flow, sent[flow], reason)


def violation(flow: Flow | tuple[None, str, None, None], size: int, reason: str) -> Violation:
    round, source, target, vector = flow
    return {"round": round, "from": source, "to": target, "vector": vector, "bytes": size, "reason": reason}


def edges_by(flows: Iterable[Flow], key: Callable[[int, str], tuple[Any, ...]]) -> Iterable[set[Edge]]:
    """The edges used, in groups of equal `key(round, vector)`."""
    groups: dict[tuple[Any, ...], set[Edge]] = {}
    for round, source, target, vector in flows:
        groups.setdefault(key(round, vector), set()).add((source, target))
    return groups.values()

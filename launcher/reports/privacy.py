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

Where members are lost and return, each line is judged against the members of the view in which it was written. Rounds
that became void are in the audits, too: what left in them has left. A peer that was killed could not write down the
round in which it was, nor will it play that again if the others have gone on without it: of that round its neighbours'
audits tell, and what each vector is declared to hold.

An audit that is not there proves nothing either way. Of a run whose peers' audits are not all at hand, a definition can
be denied and not proven: then it is None.
"""

from collections import Counter
from collections.abc import Collection, Mapping

from launcher.reports.definitions import fit_on_a_ring, server_free
from launcher.reports.flows import Audit, edges_by, entries, flows_that_carry, flows_unwritten
from launcher.reports.summary_json import Privacy
from launcher.reports.trust import Promise
from launcher.reports.violations import mismatches, missing, undeclared
from launcher.views import Views
from peer.spec.federation import MEANS, VARIANCES


def privacy(views: Views, audits: Mapping[str, Audit], promise: Promise, unfinished: Collection[str] = ()) -> Privacy:
    """The `privacy` block of summary.json from every peer's audit of a run.

    unfinished: members whose audits may lack rounds; nothing is said against them, nor against those without an audit.

    Returns head_bytes_sent (bytes), edges_used ([from, to] pairs, in the members' order), violations (each
    {round, from, to, vector, bytes, reason}), on_trust (each {vector, why, bytes}) and definitions ({"3.1": met,
    "3.2": met, "3.3": met}; one is None where nothing speaks against it but a member is unknown
    or, of 3.1, something is on trust). unknown has the members without a whole audit, if there are any.
    """
    private = promise.declared.heads_stay
    on_trust = promise.on_trust(audits)
    unwritten = [*flows_unwritten(views, audits)]
    carried = [*flows_that_carry(audits), *unwritten]
    unseen_heads = any(promise.holds_head(vector, round) for _, round, _, _, vector in unwritten)
    unknown = [id for id in views.ids if id in unfinished or id not in audits]
    violations = [
        *(gaps := list(missing(views, {id: audit for id, audit in audits.items() if id not in unknown}))),
        *undeclared(views, audits, private),
        *mismatches(audits, "bytes"),
        *mismatches(audits, "scalar_bytes"),
    ]
    head = sum(entry.get("head_bytes", 0) for _, _, entry in entries(audits, "sent"))
    place = {id: position for position, id in enumerate(views.ids)}
    edges_used = sorted(
        {(source, target) for _, _, source, target, _ in carried},
        key=lambda edge: [(place.get(id, len(place)), id) for id in edge],
    )
    used = edges_by(carried, lambda view, round, vector: (view, round))
    by_vector = edges_by(carried, lambda view, round, vector: (view, round, vector))

    def verdict(holds: bool, *doubts: object) -> bool | None:
        return None if not gaps and holds and any(doubts) else not gaps and holds

    proof: Privacy = {
        "head_bytes_sent": head,
        "edges_used": [list(edge) for edge in edges_used],
        "violations": violations,
        "on_trust": on_trust,
        "definitions": {
            "3.1": verdict(head == 0, unknown, on_trust, unseen_heads),
            "3.2": verdict(
                all(server_free(edges, views.members_of(view)) for (view, *_), edges in used.items()), unknown
            ),
            "3.3": verdict(
                all(fit_on_a_ring(edges, views.members_of(view)) for (view, *_), edges in by_vector.items()), unknown
            ),
        },
    }
    if of_data := sent_of_data(audits):
        proof["of_data"] = of_data
    return {**proof, "unknown": unknown} if unknown else proof


def sent_of_data(audits: Mapping[str, Audit]) -> dict[str, int]:
    """Bytes by vector of what peers found of their columns: sums over samples, made into means on their way."""
    sent = Counter[str]()
    for _, _, entry in entries(audits, "sent"):
        if entry["vector"] in (MEANS, VARIANCES):
            sent[entry["vector"]] += entry["bytes"]
    return dict(sorted(sent.items()))

"""All audits together as a proof of FIRMA's Definitions 3.1 to 3.3 for one run.

3.1, head privacy: no byte of a head left its peer. Where something left whose content nobody can check, this can
     neither be said nor denied: then it is None, and `on_trust` says what it rests on (`launcher.reports.trust`).
3.2, no server: both ends of every edge are members, and no member is a hub, that is, the one through whom all
     others talk. (A ring neighbour that blends two vectors is no server by the paper's own Proposition 5.6.)
3.3, ring: all edges that were used fit on one ring, so that each peer talked to two neighbours at most.

The last two are judged over the whole run, but for what all peers announce to each other: another order of the ring,
other members (`launcher.reports.definitions`). Every verdict comes with a sentence that says what was counted.

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

from launcher.reports.definitions import Finding, in_order, neighbours_only, no_head_left, no_server
from launcher.reports.flows import Audit, carried, entries
from launcher.reports.summary_json import Privacy
from launcher.reports.trust import Promise
from launcher.reports.violations import disagreed, mismatches, missing, undeclared
from launcher.views import Views
from peer.spec.federation import MEANS, VARIANCES


def privacy(views: Views, audits: Mapping[str, Audit], promise: Promise, unfinished: Collection[str] = ()) -> Privacy:
    """The `privacy` block of summary.json from every peer's audit of a run.

    unfinished: members whose audits may lack rounds; nothing is said against them, nor against those without an audit.

    Returns head_bytes_sent (bytes), edges_used ([from, to] pairs, in the members' order), violations (each
    {round, from, to, vector, bytes, reason}), on_trust (each {vector, why, bytes}) and definitions ({"3.1": met,
    "3.2": met, "3.3": met}; one is None where nothing speaks against it but a member is unknown
    or, of 3.1, something is on trust), with `counted`, a sentence on each. unknown has the members without a whole
    audit, if there are any.
    """
    private = promise.declared.heads_stay
    on_trust = promise.on_trust(audits)
    sent = carried(views, audits)
    orders = in_order(views, sent)
    unseen_heads = any(one.unwritten and promise.holds_head(one.vector, one.round) for one in sent)
    unknown = [id for id in views.ids if id in unfinished or id not in audits]
    violations = [
        *(gaps := list(missing(views, {id: audit for id, audit in audits.items() if id not in unknown}))),
        *disagreed(audits),
        *undeclared(views, audits, private),
        *mismatches(audits, "bytes"),
        *mismatches(audits, "scalar_bytes"),
    ]
    heads = Counter[str]()
    for _, _, entry in entries(audits, "sent"):
        heads[entry["vector"]] += entry.get("head_bytes", 0)
    place = {id: position for position, id in enumerate(views.ids)}
    edges_used = sorted(
        {one.edge for one in sent},
        key=lambda edge: [(place.get(id, len(place)), id) for id in edge],
    )
    found = {
        "3.1": no_head_left(+heads, sent, on_trust, promise.whose_code),
        "3.2": no_server(orders),
        "3.3": neighbours_only(orders),
    }
    if unseen_heads:
        found["3.1"] = found["3.1"].doubted("a peer that was lost sent what may hold a head, and wrote nothing down")
    if unknown:
        found = {name: one.doubted(f"no whole audit of {', '.join(unknown)}") for name, one in found.items()}
    if gaps:
        found = {
            name: Finding(False, f"{one.counted}; audits lack rounds, so nothing is proven")
            for name, one in found.items()
        }
    proof: Privacy = {
        "head_bytes_sent": heads.total(),
        "edges_used": [list(edge) for edge in edges_used],
        "violations": violations,
        "on_trust": on_trust,
        "definitions": {name: one.holds for name, one in found.items()},
        "counted": {name: one.counted for name, one in found.items()},
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

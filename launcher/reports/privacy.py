"""All audits together as a proof of FIRMA's Definitions 3.1 to 3.3 for one run.

3.1, head privacy: no byte of a head left its peer. Where something left whose content nobody can check, this can
     neither be said nor denied: then it is None, and `on_trust` says what it rests on.
3.2, no server: both ends of every edge are members, and no member is a hub, that is, the one through whom the others
     talk. Bytes count, so that an edge beside a star hides no server. (A ring neighbour that blends two vectors is none
     by the paper's own Proposition 5.6.)
3.3, ring: all edges that were used fit on one ring, so that each peer talked to two neighbours at most.

The last two are judged over the whole run, but for what all peers announce to each other: other members and, of 3.3,
another order of the ring. What happens between two such changes is judged as a whole: who meets another partner each
round, or collects in one round and sends back in the next, is seen in no round alone. Nor in one order alone, where
user code announces the orders: then all vectors that were sent among the same members have to fit on one ring. Every
verdict comes with a sentence that says what was counted.

Whether the definitions are met is a property of the protocol. A *violation* is a byte that left against the
protocol's own declaration: an edge not authorised in that round, a head it calls private. What a sender wrote
down must be what its receiver wrote down: a difference is a violation too, and so is an audit that lacks rounds.

Where members are lost and return, each line is judged against the members of the view in which it was written. Rounds
that became void are in the audits, too: what left in them has left. A peer that was killed could not write down the
round in which it was, nor will it play that again if the others have gone on without it: of that round its neighbours'
audits tell, and what each vector is declared to hold.

An audit that is not there proves nothing either way, nor does one that was lost in part with a peer's directory. Of a
run whose peers' audits are not all at hand, a definition can be denied and not proven: then it is None.

What cannot be verified: a part of the model is taken from the model by the runtime itself, but a vector of a protocol's
own is whatever its code wrote into it. Of the protocols that come with this project the code is known and tested, so
what they declare a vector to be laid out like (`like`) counts; user code has nobody's word but its author's. Bytes that
nobody can read (ciphertexts, what a user's codec makes) are on trust in either. Numbers beside vectors, in records and
in notes can be parts of a head: where user code takes part, be it the protocol, the task, the model, a training step or
loop, or the data, it has a say in them, and all of them are on trust.

Read from top to bottom: what the audits say (flows), the definitions, the violations, what cannot be verified, the
proof.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal, NamedTuple, TypeVar

from launcher.reports.peer_files import AuditedRound, ReceivedEntry, SentEntry
from launcher.reports.summary_json import Privacy, UnverifiedBytes, Violation
from launcher.table import quantity
from launcher.views import Views
from peer.protocols.declarations import Declarations, Share
from peer.spec.blocks import Coded, Wire
from peer.spec.federation import IMPUTED, MEANS, VARIANCES, Spec
from peer.text import plural
from peer.topology import receivers

Audits = Mapping[str, Sequence[AuditedRound]]
"""The audits of all peers, by id."""
Edge = tuple[str, str]
"""Sender and receiver."""
Flow = tuple[int, int, str, str, str]
"""Number of the view, round, sender, receiver, name of the vector."""


class SentVector(NamedTuple):
    """One vector or record that went along an edge in a round."""

    view: int
    order: int
    """How often the ring had been reordered in that view."""
    round: int
    source: str
    target: str
    vector: str
    bytes: int
    number_bytes: int
    """The bytes of the numbers with the vector, or in the record."""
    unwritten: bool = False
    """Whether only its receiver has recorded it, as the sender was lost before it could."""

    @property
    def edge(self) -> Edge:
        return self.source, self.target


def sent_vectors(views: Views, audits: Audits) -> list[SentVector]:
    """All that was sent but the empty messages: one says that nothing is sent, and uses no edge.

    By the senders' audits, and by the receivers' where a sender was lost before it could write its round down.
    """
    orders = RingOrders(audits)
    found = []
    for source, record, entry in sent_entries(audits):
        order = orders.before(*record.at) + entry.order
        found.append(SentVector(record.view, order, record.round, source, entry.to, entry.vector, *entry.sizes))
    whole = records(audits, whole=True)
    for target, record, got in received_entries(audits) if views.later else ():
        if got.sender in audits and (got.sender, *record.at) not in whole:
            order = orders.of(views.members_of(record.view), *record.at, (got.sender, target))
            ends = got.sender, target
            found.append(SentVector(record.view, order, record.round, *ends, got.vector, *got.sizes, unwritten=True))
    return [one for one in found if one.bytes or one.number_bytes]


class RingOrders:
    """Into which orders the ring was put, by all peers' audits."""

    def __init__(self, audits: Audits) -> None:
        longest: dict[tuple[int, int], Sequence[Sequence[str]]] = {}
        for _, record in all_rounds(audits):
            if len(record.orders) > len(longest.get(record.at, ())):
                longest[record.at] = record.orders
        self._announced: dict[int, list[tuple[int, Sequence[str]]]] = {}
        """The announced orders of the ring by view, each with its round."""
        for (view, round), orders in sorted(longest.items()):
            self._announced.setdefault(view, []).extend((round, ring) for ring in orders)

    def before(self, view: int, round: int) -> int:
        """How many were announced in that view before that round."""
        return bisect_left(self._announced.get(view, ()), round, key=lambda one: one[0])

    def of(self, members: Sequence[str], view: int, round: int, edge: Edge) -> int:
        """The first order that held in that round and in which the two are neighbours; the last if there is none."""
        rings = [members, *(ring for at, ring in self._announced.get(view, ()) if at <= round)]
        held = range(self.before(view, round), len(rings))
        one, other = edge
        met = (order for order in held if one in rings[order] and other in receivers("ring", rings[order], one))
        return next(met, len(rings) - 1)


def all_rounds(audits: Audits) -> Iterator[tuple[str, AuditedRound]]:
    """Each with the id of the peer that wrote it down."""
    return ((id, record) for id, audit in audits.items() for record in audit)


def sent_entries(audits: Audits) -> Iterator[tuple[str, AuditedRound, SentEntry]]:
    return ((id, record, entry) for id, record in all_rounds(audits) for entry in record.sent)


def received_entries(audits: Audits) -> Iterator[tuple[str, AuditedRound, ReceivedEntry]]:
    return ((id, record, entry) for id, record in all_rounds(audits) for entry in record.received)


def records(audits: Audits, *, whole: bool) -> set[tuple[str, int, int]]:
    """The rounds that are written down: whose audit it is, view, round; whole: without those that were cut off."""
    return {(id, *record.at) for id, record in all_rounds(audits) if not (whole and record.interrupted)}


K = TypeVar("K")
MAX_NAMED = 5
"""How many peers or vectors are named; the others are counted."""
HOLDS = {True: "met", False: "not met", None: "neither proven nor denied"}


class DefinitionFinding(NamedTuple):
    """Whether a definition is met, as far as was counted; None: neither proven nor denied."""

    holds: bool | None
    counted: str

    def doubted(self, why: str) -> "DefinitionFinding":
        """The finding when something may not have been counted; a denial remains one."""
        return DefinitionFinding(False if self.holds is False else None, f"{self.counted}; {why}")


@dataclass(frozen=True)
class RingPeriod:
    """What was sent in one view while the ring was in one order."""

    view: int
    members: Sequence[str]
    flows: Sequence[SentVector]

    @cached_property
    def edges(self) -> set[Edge]:
        return {flow.edge for flow in self.flows}

    @property
    def groups(self) -> Iterator[tuple[Sequence[SentVector], str]]:
        """Flows that may have no hub: all, those of one vector, those of one round; and what they are, in words."""
        yield self.flows, ""
        for vector, some in _by(self.flows, lambda flow: flow.vector):
            yield some, f" of `{vector}`"
        for _, some in _by(self.flows, lambda flow: flow.round):
            yield some, ""


def ring_periods(views: Views, flows: Iterable[SentVector]) -> list[RingPeriod]:
    """The ring's periods, by view, and by order of the ring within it, the last one at the end."""
    by_order = sorted(_by(flows, lambda flow: (flow.view, flow.order)), key=lambda one: one[0])
    return [RingPeriod(view, views.members_of(view), some) for (view, _), some in by_order]


def no_head_left(
    heads: Mapping[str, int], sent: Sequence[SentVector], on_trust: Sequence[UnverifiedBytes], own: str
) -> DefinitionFinding:
    """Definition 3.1. heads: bytes of heads by vector; own: what is to be said of a user's own code, or nothing."""
    if heads:
        return DefinitionFinding(
            False, f"{quantity(sum(heads.values()))} of heads left their peers, in {_sizes(heads)}"
        )
    vectors, numbers = sum(flow.bytes for flow in sent), sum(flow.number_bytes for flow in sent)
    counted = f"0 B of heads in {quantity(vectors)} of vectors and {quantity(numbers)} of numbers"
    if on_trust:
        trusted = Counter[str]()
        for one in on_trust:
            trusted[one["vector"]] += one["bytes"]
        counted += f"; {quantity(trusted.total())} on trust: {_sizes(trusted)}"
    return DefinitionFinding(None if on_trust else True, f"{counted}; {own}")


def no_server(periods: Sequence[RingPeriod]) -> DefinitionFinding:
    """Definition 3.2: members only, and none through which the others talk, be it over several rounds or in one."""
    edges = [(edge, one.members) for one in periods for edge in sorted(one.edges)]
    if strangers := [(id, edge) for edge, members in edges for id in edge if id not in members]:
        id, (source, target) = strangers[0]
        return DefinitionFinding(False, f"{id} was no member, and {source} sent to {target}")
    for one in periods:
        for flows, what in one.groups:
            sizes = _sizes_by_edge(flows)
            if (centre := hub(sizes)) is not None:
                others = plural(len(neighbourhoods(sizes)) - 1, "other")
                when = f"{what} in {_rounds(flows)}"
                return DefinitionFinding(
                    False, f"{centre} {_stood(centre, sizes, when)}, so it stood between the {others}"
                )
    if not periods:
        return DefinitionFinding(True, "nothing was sent")
    sizes_of = [_sizes_by_edge(one.flows) for one in periods]
    shares = [(share, id, sizes) for sizes in sizes_of for id, share in shares_passed(sizes).items()]
    _, busiest, sizes = max(shares, key=lambda one: one[0])
    return DefinitionFinding(
        True,
        f"nobody stood between the others, in a round or over many: {busiest}, the busiest, {_stood(busiest, sizes)}",
    )


def _stood(id: str, sizes: Mapping[Edge, int], when: str = "") -> str:
    """What was counted of a peer: edges, and bytes unless they are all of them."""
    ends = sum(id in edge for edge in sizes)
    edges = plural(len(sizes), "directed edge")
    if ends == len(sizes):
        return f"was an end of all {edges}{when}"
    percent = int(100 * shares_passed(sizes)[id]) or "less than 1"
    return (
        f"was an end of {ends} of {edges}{when}, and {percent} % of the bytes that the others sent and got passed "
        "through it"
    )


def neighbours_only(orders: Sequence[RingPeriod], announcer: str = "") -> DefinitionFinding:
    """Definition 3.3: what was sent between two changes of the ring fits on one ring.

    announcer: the protocol, if it is a user's own: then the vectors that went among the same members do, too.
    """
    used = _used(orders)
    for one in orders:
        if why := why_no_ring(one.edges, one.members):
            meanwhile = " while the ring stayed in one order" if len(orders) > 1 else ""
            return DefinitionFinding(False, f"{why} in {_rounds(one.flows)}{meanwhile}; {used}")
    for _, among_the_same in groupby(orders if announcer else (), key=lambda one: one.view):
        announced = [*among_the_same]
        vectors = [flow for one in announced for flow in one.flows if flow.bytes]
        if why := why_no_ring({flow.edge for flow in vectors}, announced[0].members):
            told = f"as `{announcer}` put the ring into {plural(len(announced), 'order')}"
            return DefinitionFinding(False, f"{why} in {_rounds(vectors)}, {told}; {used}")
    if earlier_edges(orders):
        whole = max(map(len, neighbourhoods(edge for one in orders for edge in one.edges).values()))
        in_all = f" in one order of the ring, nor more than {whole} in all"
        return DefinitionFinding(True, f"{used}; no peer had more than 2 partners{in_all}")
    return DefinitionFinding(
        True, f"{used}, on one ring; no peer had more than 2 partners" if orders else "nothing was sent"
    )


def neighbourhoods(edges: Iterable[Edge]) -> dict[str, set[str]]:
    """The peers with which each exchanged anything, in either direction."""
    found: dict[str, set[str]] = {}
    for source, target in edges:
        found.setdefault(source, set()).add(target)
        found.setdefault(target, set()).add(source)
    return found


MOST, NEARLY_ALL = 0.55, 0.9
"""Shares of the bytes. Half of them pass anybody on a ring of three or in the middle of a row of four, three fifths the
server of three clients of which two exchange as much with each other. On a ring of three that give unequally, some more
than half may pass one."""


def hub(sizes: Mapping[Edge, int]) -> str | None:
    """The one that most of the others' bytes pass, with three others at least, or nearly all, with two that it both
    hears and answers; else None.

    On a ring a peer that sends to its two neighbours is none, though they may not have come to send anything.
    """
    shares = shares_passed(sizes)
    for centre in [id for id, share in shares.items() if share > MOST]:
        targets, sources = ({edge[1 - end] for edge in sizes if edge[end] == centre} for end in (0, 1))
        if len(targets | sources) > 2 or (min(len(targets), len(sources)) > 1 and shares[centre] > NEARLY_ALL):
            return centre
    return None


def shares_passed(sizes: Mapping[Edge, int]) -> dict[str, float]:
    """By peer, of the bytes that the others sent the share that it got, or of those that they got the share that it
    sent, whichever is less; 1 where they sent or got nothing."""
    sent, got = Counter[str](), Counter[str]()
    for (source, target), size in sizes.items():
        sent[source] += size
        got[target] += size
    whole = sent.total()

    def share(part: int, others: int) -> float:
        return part / others if others else 1.0

    return {id: min(share(got[id], whole - sent[id]), share(sent[id], whole - got[id])) for id in [*(sent | got)]}


def _sizes_by_edge(flows: Iterable[SentVector]) -> Counter[Edge]:
    sizes = Counter[Edge]()
    for flow in flows:
        sizes[flow.edge] += flow.bytes + flow.number_bytes
    return sizes


def why_no_ring(edges: Iterable[Edge], members: Sequence[str]) -> str:
    """Why they are not paths of members, or the one closed ring of them all; empty if they are."""
    neighbours = neighbourhoods(edges)
    if strangers := sorted(neighbours.keys() - {*members}):
        return f"{strangers[0]}, who was no member, exchanged with {_named(sorted(neighbours[strangers[0]]))}"
    most = max(neighbours, key=lambda id: (len(neighbours[id]), -members.index(id)), default=None)
    if most is not None and len(neighbours[most]) > 2:
        others = sorted(neighbours[most], key=members.index)
        return f"{most} exchanged with {len(others)} others ({_named(others)})"
    unseen = set(neighbours)
    while unseen:
        component, front = set[str](), {unseen.pop()}
        while front:
            component |= front
            front = {one for id in front for one in neighbours[id]} - component
        unseen -= component
        closed = len(component) > 2 and all(len(neighbours[id]) == 2 for id in component)
        if closed and len(component) < len(members):
            return f"{_named(sorted(component, key=members.index))} closed a ring without the others"
    return ""


def earlier_edges(orders: Sequence[RingPeriod]) -> set[Edge]:
    """The edges used only before the ring's last order."""
    return {edge for one in orders[:-1] for edge in one.edges} - (orders[-1].edges if orders else set())


def _used(orders: Sequence[RingPeriod]) -> str:
    """17 directed edges: 12 of the ring, 5 of the ring before it was reordered (order and proportions, 440 B each)."""
    earlier = earlier_edges(orders)
    whole = plural(len({edge for one in orders for edge in one.edges}), "directed edge")
    if not earlier:
        return whole
    flows = [flow for one in orders for flow in one.flows if flow.edge in earlier]
    vectors, sizes = {flow.vector for flow in flows}, {*_sizes_by_edge(flows).values()}
    each = f"{'at most ' if len(sizes) > 1 else ''}{quantity(max(sizes))} each"
    change = "it was reordered" if orders[0].view == orders[-1].view else "its members changed"
    before = f"the ring before {change}" if len(orders) == 2 else f"the {len(orders) - 1} rings before it"
    return (
        f"{whole}: {len(orders[-1].edges)} of the ring, {len(earlier)} of {before} ({_named(sorted(vectors))}, {each})"
    )


def _by(flows: Iterable[SentVector], key: Callable[[SentVector], K]) -> Iterator[tuple[K, list[SentVector]]]:
    groups: dict[K, list[SentVector]] = {}
    for flow in flows:
        groups.setdefault(key(flow), []).append(flow)
    yield from groups.items()


def _rounds(flows: Iterable[SentVector]) -> str:
    known = {flow.round for flow in flows}
    return f"rounds {min(known)} to {max(known)}" if len(known) > 1 else f"round {max(known)}"


def _named(names: Sequence[str]) -> str:
    if len(names) > MAX_NAMED:
        return f"{', '.join(names[:MAX_NAMED])} and {len(names) - MAX_NAMED} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _sizes(sizes: Mapping[str, int]) -> str:
    return _named([f"{name} ({quantity(size)})" for name, size in sorted(sizes.items())])


MAX_ROUNDS_AHEAD = 5
"""Rounds by which a neighbour may be further than what a peer has on disk, and the one that it is in."""


def missing_rounds(views: Views, audits: Audits) -> dict[str, list[tuple[int, int]]]:
    """View and round of what a member's audit lacks, by id; round 0 is the set-up and always written down."""
    whole, lacking = records(audits, whole=True), dict[str, list[tuple[int, int]]]()
    for span in views.spans:
        lost = views.lost_after(span)
        for id in [id for id in span.view.members if id in audits]:
            absent = [round for round in span.rounds if (id, span.view.number, round) not in whole]
            if id in lost:
                absent = without_the_last(absent, span.last, MAX_ROUNDS_AHEAD * len(lost))
            lacking.setdefault(id, []).extend((span.view.number, round) for round in absent)
    return {id: rounds for id in views.ids if (rounds := lacking.get(id))}


def was_lost(lacking: Sequence[tuple[int, int]], audit: Sequence[AuditedRound], returned: int) -> bool:
    """Whether an audit begins with that view, to which its peer returned with nothing: the directory had been lost, and
    the audit of all earlier views with it. A liar that says so has no more of it than one that removes its audit."""
    return all(view < returned for view, _ in lacking) and all(record.view >= returned for record in audit)


def without_the_last(absent: list[int], last: int, most: int) -> list[int]:
    """The rounds but for the unbroken row of them that ends with `last`, if it is of `most` rounds at most."""
    row = 0
    while row < len(absent) and absent[-1 - row] == last - row:
        row += 1
    return absent[: len(absent) - row] if row <= most else absent


def disagreed(audits: Audits) -> Iterator[Violation]:
    """Orders of the ring that one peer says to have been announced in a round, and another one does not."""
    said: dict[tuple[int, int], tuple[str, list[list[str]]]] = {}
    for id, record in all_rounds(audits):
        first, orders = (id, record.orders) if record.interrupted else said.setdefault(record.at, (id, record.orders))
        if orders != record.orders:
            reason = f"{first} and {id} do not say alike into which order the ring was put in round {record.round}"
            yield violation(id, 0, reason)


def undeclared(views: Views, audits: Audits, private: Callable[[int], bool]) -> Iterator[Violation]:
    """Lines of an audit against what the protocol declared for that round."""
    for id, record, entry in sent_entries(audits):
        flow, members = (*record.at, id, entry.to, entry.vector), views.members_of(record.view)
        for end, peer in (("receiver", entry.to), ("sender", id)):
            if peer not in members:
                where = f"view {record.view}" if record.view else "the federation"
                yield violation(flow, entry.bytes, f"the {end} is not a member of {where}")
        if "send" not in record.edges.get(entry.to, ()):
            yield violation(flow, entry.bytes, "the edge was not authorised in this round")
        if entry.head_bytes and private(record.round):
            yield violation(flow, entry.bytes, f"{entry.head_bytes} bytes of a private head")
    for id, record, got in received_entries(audits):
        if "receive" not in record.edges.get(got.sender, ()):
            flow = (*record.at, got.sender, id, got.vector)
            yield violation(flow, got.bytes, f"{id} was not to receive from {got.sender} in this round")


def mismatches(audits: Audits) -> Iterator[Violation]:
    """Flows whose two ends counted differently; where one end left no record there is nothing to compare.

    Of an interrupted round not all that was sent had arrived; and its sender, if it was started again meanwhile, has
    not counted what it had sent before.
    """
    recorded, whole = records(audits, whole=False), records(audits, whole=True)
    for kind, what in (("bytes", "bytes"), ("scalar_bytes", "bytes of scalars")):
        sent, received = Counter[Flow](), Counter[Flow]()
        for id, record, entry in sent_entries(audits):
            sent[*record.at, id, entry.to, entry.vector] += getattr(entry, kind)
        for id, record, got in received_entries(audits):
            received[*record.at, got.sender, id, got.vector] += getattr(got, kind)
        for flow in sorted(set(sent) | set(received)):
            view, round, source, target, _ = flow
            ends = (source, view, round), (target, view, round)
            less = ends[1] not in whole and received[flow] < sent[flow]
            if {*ends} <= recorded and ends[0] in whole and not less and sent[flow] != received[flow]:
                reason = f"{source} counted {sent[flow]} {what} sent, {target} {received[flow]} received"
                yield violation(flow, sent[flow], reason)


def violation(what: Flow | str, size: int, reason: str) -> Violation:
    """what: a flow, or a peer whose audit is at fault."""
    view, round, source, target, vector = (0, None, what, None, None) if isinstance(what, str) else what
    found: Violation = {"round": round, "from": source, "to": target, "vector": vector, "bytes": size, "reason": reason}
    return {**found, "view": view} if view else found


def violation_line(one: Violation) -> str:
    """For a person."""
    where = "" if one["round"] is None else f"round {one['round']}, {one['from']} to {one['to']}: "
    return where + one["reason"]


DOUBLE_BYTES = 8
"""Bytes of a number."""


@dataclass(frozen=True)
class PrivacyDeclaration:
    """What the run's protocol declares, and each `module:Name` of a user's own code that took part."""

    declared: Declarations
    own_code: Sequence[str] = ()
    wire: Wire | None = None

    def on_trust(self, audits: Audits) -> list[UnverifiedBytes]:
        """{vector, why, bytes} of each vector whose content cannot be verified, by name; bytes of all peers."""
        sent: Counter[tuple[str, str]] = Counter()
        for _, record, entry in sent_entries(audits):
            share = self._share(entry.vector, record.round)
            if entry.bytes and share and (why := self._why(share)):
                sent[entry.vector, why] += entry.bytes
        found: list[UnverifiedBytes] = [
            {"vector": name, "why": why, "bytes": size} for (name, why), size in sorted(sent.items())
        ]
        told = self._numbers(audits, "told", "numbers that code of your own had a say in")
        noted = self._numbers(audits, "noted", "noted by code of your own, and so in events and results")
        return [*found, *told, *noted]

    @property
    def whose_code(self) -> str:
        """The peers whose own code took part, in words."""
        if not self.own_code:
            return "no code of your own took part"
        named = ", ".join(f"`{name}`" for name in self.own_code)
        return f"code of your own took part, {named}, and nobody can check what it wrote into the model"

    def holds_head(self, vector: str, round: int) -> bool:
        """Whether that vector, as it is declared, has a head in it."""
        share = self._share(vector, round)
        return share is None or share.holds_head

    def _share(self, vector: str, round: int) -> Share | None:
        return next((share for share in self.declared.travelling(round) if share.vector == vector), None)

    def _why(self, share: Share) -> str | None:
        if share.bytes:
            return "bytes that nobody but the protocol can read"
        if share.holds_head:
            return None  # counted as one
        if isinstance(self.wire, Coded) and self.wire.shortens(share):
            return "encoded by a codec of your own, which nobody can check"
        if not share.own:
            return None  # a part of the model
        if share.like is None:
            return "the protocol does not declare what is in it"
        own = self.declared.protocol in self.own_code
        return "declared like the extractor by code of your own, which nobody can check" if own else None

    def _numbers(self, audits: Audits, kind: Literal["told", "noted"], why: str) -> list[UnverifiedBytes]:
        """The numbers by name, if user code took part; each counts once, however many peers get it."""
        counts: Counter[str] = Counter()
        for _, record in all_rounds(audits) if self.own_code else ():
            counts.update(getattr(record, kind))
        return [{"vector": name, "why": why, "bytes": DOUBLE_BYTES * count} for name, count in sorted(counts.items())]


def privacy_declaration(spec: Spec, audits: Audits) -> PrivacyDeclaration:
    """What the run's protocol promises of heads, and whose code took part, by the spec and by each peer's audit."""
    told = (name for _, record in all_rounds(audits) for name in record.own_code)
    return PrivacyDeclaration(
        spec.protocol.declarations(spec.rounds), tuple(dict.fromkeys([*spec.computing_code, *told])), spec.wire
    )


def privacy(views: Views, audits: Audits, declaration: PrivacyDeclaration, unfinished: Collection[str] = ()) -> Privacy:
    """The `privacy` block of summary.json from every peer's audit of a run.

    unfinished: members whose audits may lack rounds; nothing is said against them, nor against those without an audit.

    Returns head_bytes_sent (bytes), edges_used ([from, to] pairs, in the members' order), violations (each
    {round, from, to, vector, bytes, reason}), on_trust (each {vector, why, bytes}) and definitions ({"3.1": met,
    "3.2": met, "3.3": met}; one is None where nothing speaks against it but a member is unknown
    or, of 3.1, something is on trust), with `counted`, a sentence on each. unknown has the members without a whole
    audit, if there are any.
    """
    on_trust = declaration.on_trust(audits)
    sent = sent_vectors(views, audits)
    orders = ring_periods(views, sent)
    whole = ring_periods(views, (one._replace(order=0) for one in sent))
    announcer = declaration.declared.protocol if declaration.declared.protocol in declaration.own_code else ""
    unseen_heads = any(one.unwritten and declaration.holds_head(one.vector, one.round) for one in sent)
    unseen = {id for id in views.ids if id in unfinished or id not in audits}
    lacking = missing_rounds(views, {id: audit for id, audit in audits.items() if id not in unseen})
    unseen |= {id for id in lacking if was_lost(lacking[id], audits[id], views.returned_with_nothing(id))}
    unknown = [id for id in views.ids if id in unseen]
    gaps = [
        violation(
            id, 0, f"{id}'s audit lacks rounds, so nothing is proven: {', '.join(str(at) for _, at in found[:10])}"
        )
        for id, found in lacking.items()
        if id not in unseen
    ]
    violations = [
        *gaps,
        *disagreed(audits),
        *undeclared(views, audits, declaration.declared.heads_stay),
        *mismatches(audits),
    ]
    heads, of_data = Counter[str](), Counter[str]()
    for _, _, entry in sent_entries(audits):
        heads[entry.vector] += entry.head_bytes
        if entry.vector in (IMPUTED, MEANS, VARIANCES):  # sums over samples, made into means on their way
            of_data[entry.vector] += entry.bytes
    place = {id: position for position, id in enumerate(views.ids)}
    edges_used = sorted({one.edge for one in sent}, key=lambda edge: [(place.get(id, len(place)), id) for id in edge])
    found = {
        "3.1": no_head_left(+heads, sent, on_trust, declaration.whose_code),
        "3.2": no_server(whole if len(whole) == len(orders) else [*whole, *orders]),
        "3.3": neighbours_only(orders, announcer),
    }
    if unseen_heads:
        found["3.1"] = found["3.1"].doubted("a peer that was lost sent what may hold a head, and wrote nothing down")
    if unknown:
        found = {name: one.doubted(f"no whole audit of {', '.join(unknown)}") for name, one in found.items()}
    if gaps:
        why = "audits lack rounds, so nothing is proven"
        found = {name: DefinitionFinding(False, f"{one.counted}; {why}") for name, one in found.items()}
    proof: Privacy = {
        "head_bytes_sent": heads.total(),
        "edges_used": [list(edge) for edge in edges_used],
        "violations": violations,
        "on_trust": on_trust,
        "definitions": {name: one.holds for name, one in found.items()},
        "counted": {name: one.counted for name, one in found.items()},
    }
    if of_data:
        proof["of_data"] = dict(sorted(of_data.items()))
    return {**proof, "unknown": unknown} if unknown else proof

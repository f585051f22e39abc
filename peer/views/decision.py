"""How the members decide on the next view, even if up to f of them lie and any of them crash.

The protocol is single-decree PBFT with a proposer that gathers the votes, one instance for each view number, in the
form that Lamport derives from Paxos (L. Lamport, "Byzantizing Paxos by Refinement", DISC 2011, with a proof checked by
TLAPS; M. Castro, B. Liskov, "Practical Byzantine Fault Tolerance", OSDI 1999). State by state:

| here | Lamport | PBFT | what it does |
|---|---|---|---|
| `Prepare` | 1a | new view | a member asks all to accept no lower ballot; the ballot is its own |
| `Promise` | 1b | view-change | signed; names the lock held, and the member's progress in the training |
| `Proposal` | 1c | new-view, pre-prepare | a view with a quorum of promises from which every member can compute it |
| `Vote` "accept" | 2av | prepare | signed, once per ballot |
| `Lock` | set of 2av | prepared certificate | a quorum of these: no other value can be decided in this ballot |
| `Vote` "commit" | 2b | commit | signed, with the lock on disk |
| `Decision` | chosen | committed-local | a quorum of these: decided, with proof |

A quorum is more than (n + f)/2 of n members, or, if f is 0, half of them with the first (`View.is_quorum`), so any two
share an honest member. Hence only one value gets a lock in a ballot, as no honest member votes twice; and a higher
ballot can only carry on what was decided in a lower one, as its quorum of promises includes an honest member that
committed, which names that lock or a higher one.

- **V1 Promise.** A member that has promised starts no round until the view of that number, or no change, is decided,
  and announces no round as durable beyond the one that it has promised to be able to go back to. Its answer is on disk
  before it is sent.
- **V2 Which view.** That of the highest lock that the promises name. If they name none, the one that `next_view`
  computes from them: the members that promise, without those that leave, with those that enter. An honest proposer has
  one view both exclude and admit members only if too few would be left otherwise. A member that does not promise can be
  left out only if, where members sign, each voter has had no answer from it either (the driver's part:
  `Membership._objection`).
- **V3 From which round.** If all promise, the view is *planned*: it begins after the last round that any member has
  begun. Otherwise all go back to the last round that every promising member can go back to, and later rounds are void.
  A member that was admitted after that round is admitted there again, with the private state it brought, unless that
  is void too. If all go back to the beginning, nobody is admitted: all start from scratch. A member that has left is
  needed until all have the rounds before; if it is lost or expelled, or asks to enter before, all go back as well.
- **V4 Promise against announcement.** A member that promises less than it has announced has lost its disk: it is left
  out, and nobody goes back for its sake. Whatever round a member says it has begun, it counts as no further ahead of
  the others than rule R6 allows.
- **V5 Expulsion.** By the signed consent of a quorum, or by two votes of one member that contradict each other.
- **V6 No change** is a value like any other: rounds may begin again only when a quorum has committed to it. Lower locks
  are then void, so that no view computed before those rounds began can turn up later.

`Turns` says whose attempts a member accepts, so that no member can block the rest for ever, or preempt others again
and again. Safety never rests on this: an ignored ballot is like one that got lost. Progress does, as two members that
preempt each other decide nothing (PBFT uses a fixed order of primaries and growing timeouts instead).

- **T1** A turn belongs to the member whose new ballot was accepted. While it lasts, no other ballot is accepted, not
  even a new one of the same member, as each costs a write to the disk. It lasts as long as a phase may take, counted
  from the last completed phase.
- **T2** A member whose attempt fails says so (`Yield`), and its turn is over.
- **T3** After its turn a member is ignored for a while that grows exponentially with the total time of its turns since
  the last view: so turns that the members grant it at different times come to an end, too.
- **T4** All of this is forgotten when a view is decided. When a silent member answers again, the turns of all others
  are, whose attempts may have failed for want of it; but ever more seldom for one member, or liars that come and go
  could clear each other's.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import inf
from typing import Literal

from peer.records import Many, ManyKept
from peer.views import reasons
from peer.views.signing import Keyring
from peer.views.statements import (
    JUMP,
    Announcement,
    Ask,
    AskPromise,
    Ballot,
    Behind,
    Confirm,
    Consent,
    Consents,
    Decided,
    Decision,
    Denied,
    Enter,
    Entry,
    Evidence,
    Expel,
    Grounds,
    Guilt,
    Heard,
    InvalidError,
    Leave,
    Lock,
    Objection,
    Poll,
    Prepare,
    Promise,
    Promised,
    Proposal,
    Propose,
    Refused,
    Relay,
    Relayed,
    Release,
    Reply,
    Request,
    Signed,
    Statement,
    Vote,
    Voted,
    Yield,
    canonical,
)
from peer.views.view import STALENESS_BOUND, Id, Number, Round, View, ViewChain, played

Phase = Literal["accept", "commit"]
NO_EVIDENCE = Evidence()


@dataclass(frozen=True)
class Rules:
    """What all members know from the start."""

    ids: tuple[str, ...]
    """All peers of the federation, in the order of the spec."""
    rounds: int
    """The number of rounds of the run."""
    faulty: int = 0
    """f: how many members may lie at the same time."""
    min_members: int = 1
    """The fewest members that a view may have."""
    absence: float = 30.0
    """Seconds of silence after which a member counts as lost."""
    patience: float = 60.0
    """Seconds for which a peer waits for members that cannot be excluded."""
    start_with: int | None = None
    """How many members must be there for the run to begin; None: all."""
    hands_over: bool = False
    """Whether an admitted member needs what the others have alike, such as FedAvg's model."""
    rewinds: tuple[View, ...] = ()
    """The views in which all go on after they went back: set by their operators, and decided by no votes."""


@dataclass(frozen=True)
class MemberProgress:
    """A member's progress in the training, which it states in its `Promise`."""

    durable: int = -1
    """The last round that it can go back to (the state after it); -1: the beginning."""
    started: int = -1
    """The last round that it has begun; -1: none."""


NO_PROGRESS = MemberProgress()
"""Used for requests that do not ask for a promise."""


@dataclass(frozen=True)
class MembershipChange:
    """The change that a proposer wants. Members that do not promise are left out in any case."""

    leaves: bool = False
    """Whether the proposer leaves, at the end of the present view."""
    entries: tuple[Signed[Entry], ...] = ()
    """Requests to be admitted: granted if nothing else changes, or if too few members would be left otherwise."""
    min_members: int = 1
    """A view with fewer members is not proposed."""
    withholding: frozenset[str] = frozenset()
    """Members that have refused to promise for so long that they count as lost. Any other that answers, with whatever
    ballot, is there: no view is proposed without it."""
    unanimous: bool = False
    """Whether to propose nothing unless all members promise, except for the expelled: no member counts as lost yet."""
    missing: tuple[str, ...] = ()
    """Former members that still had rounds before the present view to play, and are lost: all go back."""
    evidence: Evidence = NO_EVIDENCE
    """Expulsions, with proof. Members expelled by it are not asked, and their promises do not count."""
    suspects: frozenset[str] = frozenset()
    """Silent members: asked last, and through the others as well."""


# Which view follows (V2 to V5).


def next_view(chain: ViewChain, proposer: str, grounds: Grounds, rules: Rules) -> View | None:
    """Return the view that follows from the grounds; None for no change, or if too few members would be left, or only
    such as need what others have."""
    present = chain.current
    proved = {*_expelled(grounds.evidence)} - {*present.expelled}
    out = proved.union(present.expelled)
    promised = {one.signer: one.statement for one in grounds.promises if one.signer not in out}
    lost = _lost(chain, grounds)
    standing = {id: promise for id, promise in promised.items() if id not in lost}
    enter = {one.signer: one.statement.private for one in grounds.entries if one.signer not in out}
    enter = {id: private for id, private in enter.items() if id not in present.members}
    least = min((promise.durable for promise in standing.values()), default=-1)
    # A member that has left is needed until all have the rounds before the present view. If it asks to enter before,
    # it has given them up: it enters once the others have gone back.
    missing = grounds.missing if present.planned and least < present.first - 1 else ()
    unfinished = [number for number, last in chain.last_rounds(present.number).items() if least < last]
    back_early = enter.keys() & {id for number in unfinished for id in chain.of(number).members}
    enter = {id: private for id, private in enter.items() if id not in back_early}
    members = (standing.keys() - ({proposer} if grounds.leaves else set())) | enter.keys()  # V2
    if not (missing or back_early or members != {*present.members} or out != {*present.expelled}):
        return None
    if len(members) < max(rules.min_members, 1) or not standing:
        return None
    # Who is expelled after it has left could hold up for ever the views that it still plays.
    holding = proved.difference(present.members) & _still_playing(chain)
    planned = standing.keys() == {*present.members} and not (missing or back_early or holding)  # V3, from here on
    first = _after_all(present, standing, least) if planned else least + 1
    # Members that were admitted and cannot go back so far are admitted there once more.
    admissions = {id: chain.admission(id) for id in standing}
    readmitted = {id: private for id, (earliest, private) in admissions.items() if first <= earliest}
    entrants = {**enter, **readmitted} if first else {}
    if rules.hands_over and members <= entrants.keys():
        return None  # nobody would have it: each would wait for another
    kept = _kept(chain, first, rules.rounds)
    admitted = tuple((id, kept(id, entrants[id])) for id in _ordered(entrants.keys() & members, rules.ids))
    silent = [id for id in present.members if id not in {*promised, *out}] + [*missing]
    news: list[reasons.ReasonNews] = [([id], _why_expelled(id, grounds.evidence)) for id in _ordered(proved, rules.ids)]
    news += [(silent, reasons.silent_reason(rules.absence)), (lost & promised.keys(), reasons.FORGETFUL)]
    news += [([proposer] if grounds.leaves else [], reasons.LEAVES), (enter, reasons.TAKEN_IN)]
    outside = {*rules.ids} - {*present.members} - members
    return View(
        present.number + 1,
        _ordered(members, rules.ids),
        first,
        planned,
        admitted,
        reasons.compose_reason(news, present.reason, outside, rules.ids),
        _ordered(out, rules.ids),
    )


def _still_playing(chain: ViewChain) -> set[str]:
    """Return the members of earlier views from which only planned ones lead to the present: some may not be over."""
    return {id for number in chain.last_rounds(chain.current.number) for id in chain.of(number).members}


def _lost(chain: ViewChain, grounds: Grounds) -> set[str]:
    """Return the members that promise less than they have announced, or than a decided view says they have (V4)."""
    promised = {one.signer: one.statement for one in grounds.promises}
    lost = {one.signer for one in grounds.announced if is_less(promised.get(one.signer), one.statement, chain)}
    return lost | {id for id, promise in promised.items() if promise.durable < chain.floor(id)}


def _after_all(present: View, standing: Mapping[str, Promise], least: int) -> int:
    """Return the first round that no member has begun (V3), and at least the first of the present view.

    By rule R6 no member is more than W rounds ahead of its neighbours (V4), nor they of theirs: while not all reports
    have spread, a distant member can therefore be more than W rounds ahead.
    """
    most = least + STALENESS_BOUND + len(present.members)
    return max(present.first, 1 + max(min(promise.started, most) for promise in standing.values()))


def is_less(promise: Promise | None, announced: Announcement, chain: ViewChain) -> bool:
    """Return whether a member promises less than it has announced (V4), rounds that have become void aside."""
    if promise is None or announced.view > chain.current.number:
        return False
    return promise.durable < chain.valid(announced.round, announced.view)


def _kept(chain: ViewChain, first: int, rounds: int) -> Callable[[str, int], int]:
    """Return a function of a member and the round of the private state that it brings to a view that begins with round
    `first`. It returns that round, or -1 if the round is void there or was never played by this member (V3)."""
    views = (*chain.since(-1), View(chain.current.number + 1, (), first))
    *_, (_, before) = played(views, max(rounds, first))
    return lambda id, private: private if any(private in one for one in before.get(id, ())) else -1


def _ordered(ids: Collection[str], order: Sequence[str]) -> tuple[str, ...]:
    return tuple(id for id in order if id in ids)


def _expelled(evidence: Evidence) -> Iterable[str]:
    return {one.statement.id for one in evidence.consents} | {one.id for one in evidence.guilt}


def _why_expelled(id: str, evidence: Evidence) -> str:
    by = [one.signer for one in evidence.consents if one.statement.id == id]
    return reasons.voted_out_reason(by) if by else reasons.LIAR


# What is proved.


class Verifier:
    """Checks what messages claim; each method raises InvalidError, with the reason, for a claim without proof."""

    def __init__(self, rules: Rules, keyring: Keyring) -> None:
        self.rules, self._keyring = rules, keyring

    def digest(self, before: View, view: View | None) -> str:
        """Return the SHA-256 (hex) that is voted on: of the view that follows `before`; None for no change."""
        pair = [before.as_json(), view.as_json() if view else None]
        return sha256(canonical([self._keyring.federation, *pair])).hexdigest()

    def is_quorum(self, view: View, ids: Collection[str]) -> bool:
        return view.is_quorum(ids, self.rules.faulty)

    def check_signed(self, signed: Signed[Statement]) -> None:
        _require(signed.signer in self.rules.ids, f"{signed.signer} is no member of the federation")
        _require(self._keyring.is_valid(signed), f"the signature is not {signed.signer}'s")

    def check_promise(self, present: View, signed: Signed[Promise], ballot: Ballot) -> None:
        promise, most = signed.statement, self.rules.rounds
        _require(promise.ballot == ballot and promise.number == present.number + 1, "a promise of another ballot")
        _require(signed.signer in present.members, f"{signed.signer} is no member and promises")
        latest = max(promise.durable, promise.started)
        _require(latest <= most, f"{signed.signer} tells of round {latest} in a run of {most}")
        _require(promise.locked is None or promise.locked < ballot, "a promise with a lock of a later ballot")
        self.check_signed(signed)

    def check_promised(self, present: View, promised: Promised, by: str, ballot: Ballot) -> None:
        """Check that it is that member's promise, with the lock it names (V2): one left out could hide a decision."""
        promise, lock = promised.promise, promised.lock
        _require(promise.signer == by, "a promise by another")
        self.check_promise(present, promise, ballot)
        named = promise.statement.locked
        _require((lock.ballot if lock else None) == named, "a promise without the lock that it names")
        if lock:
            self.check_lock(present, lock)

    def check_votes(self, votes: Sequence[Signed[Vote]], vote: Vote, present: View) -> None:
        """Check that all of them are that vote, signed by a quorum."""
        _require(all(one.statement == vote for one in votes), "votes that are not for the same")
        signers = {one.signer for one in votes}
        _require(len(signers) == len(votes) and self.is_quorum(present, signers), "votes by too few members")
        for one in votes:
            self.check_signed(one)

    def check_lock(self, present: View, lock: Lock) -> None:
        _require(lock.number == present.number + 1, "a lock of another number")
        vote = Vote("accept", lock.number, lock.ballot, self.digest(present, lock.view))
        self.check_votes(lock.votes, vote, present)
        if lock.view:
            self._check_follows(present, lock.view, lock.evidence)
        else:  # it is kept and passed on: what nobody has signed could make it longer than any answer may be
            self.check_evidence(present, lock.evidence)

    def rewind_after(self, present: View) -> Decision | None:
        """Return the view after `present`, without votes, if the operators have set it (`rewinds`): no votes of before
        count for a view of its number."""
        view = next((one for one in self.rules.rewinds if one.number == present.number + 1), None)
        if view is None:
            return None
        outside, back = {*self.rules.ids} - {*present.members, *view.members}, reasons.rewound_reason(view.first - 1)
        reason = reasons.compose_reason([(view.members, back)], present.reason, outside, self.rules.ids)
        return Decision(replace(view, reason=reason, expelled=present.expelled), Ballot(1, view.members[0]), ())

    def check_decision(self, present: View, decision: Decision) -> None:
        view = decision.view
        if rewind := self.rewind_after(present):
            _require(decision == rewind, "another view than the one that `rewinds` sets")
            return
        vote = Vote("commit", view.number, decision.ballot, self.digest(present, view))
        self.check_votes(decision.votes, vote, present)
        self._check_follows(present, view, decision.evidence)

    def check_release(self, present: View, release: Release) -> None:
        vote = Vote("commit", release.number, release.ballot, self.digest(present, None))
        self.check_votes(release.votes, vote, present)

    def _check_follows(self, present: View, view: View, evidence: Evidence) -> None:
        """Check that honest members could have decided this view, whoever signed it, and that expulsions are proved."""
        ids, entrants = self.rules.ids, dict(view.entrants)
        _require(view.number == present.number + 1, f"view {view.number} after view {present.number}")
        _require(view.members == _ordered(view.members, ids) and bool(view.members), "members in another order")
        _require(view.expelled == _ordered(view.expelled, ids), "expelled members in another order")
        _require(0 <= view.first <= self.rules.rounds + 1, f"a view from round {view.first} on")
        _require(len(entrants) == len(view.entrants) and entrants.keys() <= {*view.members}, "strangers taken in")
        _require(all(-1 <= one < max(view.first, 1) for one in entrants.values()), "an entrant from a later round")
        _require({*present.expelled} <= {*view.expelled}, "an expulsion that is forgotten")
        _require(not {*view.expelled} & {*view.members}, "an expelled member")
        self.check_evidence(present, evidence)
        proved = {*_expelled(evidence)}
        _require({*view.expelled} <= proved.union(present.expelled), "an expulsion without proof")

    def check_evidence(self, present: View, evidence: Evidence) -> None:
        """Check that all members that the evidence names may be expelled (V5)."""
        by: dict[str, set[str]] = {}
        _require(len(evidence.guilt) <= len(self.rules.ids), "too many proofs of guilt")
        _require(len(evidence.consents) <= len(self.rules.ids) ** 2, "too many consents")
        given = [(one.signer, one.statement.id) for one in evidence.consents]
        _require(len({*given}) == len(given), "a consent that is given twice")
        _require(len({one.id for one in evidence.guilt}) == len(evidence.guilt), "guilt that is proved twice")
        for one in evidence.consents:
            self.check_signed(one)
            by.setdefault(one.statement.id, set()).add(one.signer)
        for id, those in by.items():
            _require(id in self.rules.ids and self.is_quorum(present, those - {id}), f"too few consent to expel {id}")
        for guilt in evidence.guilt:
            self.check_guilt(guilt)

    def check_guilt(self, guilt: Guilt) -> None:
        one, other = guilt.one.statement, guilt.other.statement
        _require(self._keyring.signs, "without certificates no lie can be proved")
        _require(guilt.one.signer == guilt.other.signer, "votes by two members")
        _require(one.digest != other.digest and replace(one, digest=other.digest) == other, "no contradiction")
        self.check_signed(guilt.one)
        self.check_signed(guilt.other)

    def check_proposal(self, chain: ViewChain, proposal: Proposal) -> None:
        """Check that the proposal is by its proposer and follows from its grounds (V2)."""
        present, grounds, vote = chain.current, proposal.grounds, proposal.vote.statement
        ballot = vote.ballot
        own = Vote("accept", present.number + 1, ballot, self.digest(present, proposal.view))
        _require(vote == own and proposal.vote.signer == ballot.proposer, "a proposal that is not its proposer's")
        self.check_signed(proposal.vote)
        signers = [one.signer for one in grounds.promises]
        _require(len({*signers}) == len(signers), "two promises by one member")
        for one in grounds.promises:
            self.check_promise(present, one, ballot)
        carried = max((one.statement.locked for one in grounds.promises if one.statement.locked), default=None)
        _require((grounds.lock.ballot if grounds.lock else None) == carried, "not the highest lock")
        counted = {*signers}
        if grounds.lock:
            self.check_lock(present, grounds.lock)
        view = grounds.lock.view if grounds.lock else None
        if view is None:
            self._check_grounds(chain, grounds)
            view = next_view(chain, ballot.proposer, grounds, self.rules)
            counted -= {*_expelled(grounds.evidence)} | _lost(chain, grounds)
        else:
            _require(proposal.view is not None, "it does not carry on the highest lock")
        # V6: "no change" may replace a view that follows from promises alone, but never a locked one.
        _require(proposal.view in (None, view), "a view that does not follow from what was promised")
        _require(self.is_quorum(present, counted), "too few promises")

    def _check_grounds(self, chain: ViewChain, grounds: Grounds) -> None:
        ids, present = self.rules.ids, chain.current
        _require(len(grounds.announced) <= len(ids) and len(grounds.entries) <= len(ids), "too many grounds")
        self.check_evidence(present, grounds.evidence)
        for announced in grounds.announced:
            self.check_signed(announced)
        for entry in grounds.entries:
            self.check_entry(entry)
            _require(entry.statement.number == present.number, f"{entry.signer} asked to enter another view")
        # Members that have left are needed only for rounds of earlier views that are still being played.
        away = _still_playing(chain) - {*present.members}
        _require({*grounds.missing} <= away, "members missing that were to play no round")
        # Each voter asks all of them, at once.
        _require(len({*grounds.missing}) == len(grounds.missing), "a member that is missing twice")

    def check_entry(self, entry: Signed[Entry]) -> None:
        """Check that the entry may be part of a proposal."""
        _require(entry.statement.private <= self.rules.rounds, f"{entry.signer} brings a round that never was")
        self.check_signed(entry)


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise InvalidError(why)


# An acceptor's part.


@dataclass(frozen=True)
class Slot:
    """What a member has answered about the view of one number."""

    number: Number
    promised: Ballot | None = None
    """The highest ballot that it has accepted."""
    released: Ballot | None = None
    """The highest ballot in which a quorum has committed to no change."""
    promise: Signed[Promise] | None = None
    """Its promise in the highest ballot; it gives the same one when asked again."""
    vote: Signed[Vote] | None = None
    """The last "accept" vote that it cast."""
    proposers: Signed[Vote] | None = None
    """The proposer's own vote in the same ballot."""
    lock: Lock | None = None
    """The highest lock that it knows."""

    @property
    def held(self) -> bool:
        """Whether rounds must not begin (V1, V6)."""
        return self.promised is not None and (self.released is None or self.promised > self.released)

    def allows_ballot(self, ballot: Ballot) -> bool:
        """Return whether a ballot may still be answered: it is neither below the promised one nor released."""
        return (self.promised is None or ballot >= self.promised) and (self.released is None or ballot > self.released)


@dataclass
class Memory:
    """What a member must never forget (views.json): written to disk before any answer that rests on it (V1)."""

    id: Id
    decisions: ManyKept[Decision] = field(default_factory=list)
    slot: Slot = Slot(1)
    consents: ManyKept[Signed[Consent]] = field(default_factory=list)
    """This member's own consents to expulsions."""
    guilt: ManyKept[Guilt] = field(default_factory=list)
    """Proofs that members of the present view lie."""
    entered: Number = 0
    """The number of the view that this peer plays, or has played last."""
    promised: Round = -1
    """The round that it has last promised to be able to go back to."""
    authorities: Many[str] = ()
    """CAs, in PEM, that this peer has trusted in this run."""
    version: Literal[2] = 2


class Acceptor:
    """Answers requests. `memory` must be on disk before an answer is sent.

    A peer that has lost its disk must not answer before a view has admitted it: it has forgotten its promises.
    """

    def __init__(self, memory: Memory, rules: Rules, keyring: Keyring) -> None:
        """Raises InvalidError if the memory holds a view that was never decided."""
        self.memory, self.rules, self.keyring = memory, rules, keyring
        self.id, self.verifier = memory.id, Verifier(rules, keyring)
        self.chain = ViewChain([View(0, rules.ids, first=0)])
        for decision in memory.decisions:
            self.verifier.check_decision(self.chain.current, decision)
            self.chain.extend(decision.view)
        self.ignored_members: frozenset[str] = frozenset()
        """Members whose attempts are refused, as enough members consent to expel them. Found by asking; not kept."""
        self._approached = 0
        """The counter that it has reached by way of ballots that were too high to be promised; not kept."""

    @property
    def slot(self) -> Slot:
        """The slot of the view after the current one; slots of earlier numbers are over."""
        number = self.chain.current.number + 1
        return self.memory.slot if self.memory.slot.number == number else Slot(number)

    @property
    def held(self) -> bool:
        """Whether this peer may start no round."""
        return self.slot.held

    @property
    def is_member(self) -> bool:
        return self.id in self.chain.current.members

    @property
    def has_forgotten(self) -> bool:
        """Whether this member has lost what it promised, so that it must wait until it is left out: whoever is in the
        last view and the one before has promised for the last one, unless the operators have set it."""
        view, slot = self.chain.current, self.memory.slot
        if not view.number or any(one.number >= view.number for one in self.rules.rewinds):
            return False
        stayed = self.id in view.members and self.id in self.chain.of(view.number - 1).members
        return stayed and (slot.number < view.number or (slot.number == view.number and slot.promise is None))

    @property
    def awaited_view(self) -> int | None:
        """The number of the last view before one that the operators have set, if this peer does not know it. It plays
        none until it does: it could do away with the round to which all go back."""
        current = self.chain.current.number
        return next((one.number - 1 for one in self.rules.rewinds if one.number > current), None)

    @property
    def consented(self) -> frozenset[str]:
        """The members to whose expulsion this member consents."""
        return frozenset(one.statement.id for one in self.memory.consents)

    def next_ballot(self, above: Ballot | None = None) -> Ballot:
        """Return a ballot never used by this peer: above all it has promised and, as far as JUMP allows, `above`."""
        known = self.slot.promised.counter if self.slot.promised else 0
        # Half as far as others accept, as they may not know the last one.
        return Ballot(max(known, min(above.counter if above else 0, known + JUMP // 2 - 1)) + 1, self.id)

    def is_beyond(self, ballot: Ballot) -> bool:
        """Return whether a ballot is too far above all known ones to be promised, which keeps members from HIGHEST."""
        return ballot.counter > self._known_counter + JUMP

    def approach(self, ballot: Ballot) -> None:
        """Come nearer, by JUMP, to a ballot that is too far above: a member that was away catches up in this way."""
        self._approached = min(self._known_counter + JUMP, ballot.counter)

    @property
    def _known_counter(self) -> int:
        return max(self._approached, self.slot.promised.counter if self.slot.promised else 0)

    def since(self, number: int, most: int) -> Decided:
        """Return up to `most` views after that number; a member that is further behind asks again."""
        return Decided(tuple(self.memory.decisions[number : number + most]))

    def handle(self, request: Request, progress: MemberProgress = NO_PROGRESS, most: int = 64) -> Reply:
        """Answer a request, with at most `most` views; raises InvalidError for what no honest member asks."""
        match request:
            case AskPromise(prepare):
                number, ballot = prepare.statement.number, prepare.statement.ballot
                return self._elsewhere(number, ballot, most) or self._promise(prepare, progress)
            case Propose(proposal):
                vote = proposal.vote.statement
                return self._elsewhere(vote.number, vote.ballot, most) or self._accept(proposal)
            case Confirm(lock):
                return self._elsewhere(lock.number, lock.ballot, most) or self._commit(lock)
            case Release():
                self._release(request)
            case Decided(decisions):
                return self._learn(decisions)
            case Ask(number):
                current = self.chain.current.number
                return Behind(current) if number > current else self.since(number, most)
            case Enter(entry):
                self.verifier.check_entry(entry)
                if entry.statement.number < self.chain.current.number:
                    return self.since(entry.statement.number, most)
            case Poll(number) if number < self.chain.current.number:
                return self.since(number, most)
            case Poll():
                return Consents(Evidence(tuple(self.memory.consents), tuple(self.memory.guilt)))
            case Leave(number) if not self.is_member:
                return self.since(number, most)
            case Expel():
                return self._consent(request, most)
        return Heard()

    def _elsewhere(self, number: int, ballot: Ballot, most: int) -> Reply | None:
        """Answer a request not about the next view, or in which this peer or the proposer has no say; else None."""
        present = self.chain.current
        if number <= present.number:
            return self.since(number - 1, most)
        if number > present.number + 1:
            return Behind(present.number)
        proposes = ballot.proposer in present.members and ballot.proposer not in self.ignored_members
        # A promise would hide, also from this peer, that it has forgotten others.
        has_say = self.is_member and not self.has_forgotten
        return None if proposes and has_say else Refused(number, ballot)

    def _promise(self, prepare: Signed[Prepare], progress: MemberProgress) -> Reply:
        slot, ballot = self.slot, prepare.statement.ballot
        _require(prepare.signer == ballot.proposer, "an attempt in the name of another")
        self.verifier.check_signed(prepare)
        if slot.promised and (ballot < slot.promised or not slot.allows_ballot(ballot)):
            return Refused(slot.number, slot.promised)
        if slot.promise is None or slot.promise.statement.ballot != ballot:
            if self.is_beyond(ballot):
                self.approach(ballot)
                return Refused(slot.number, slot.promised or ballot)
            locked = slot.lock.ballot if slot.lock else None
            promise = Promise(slot.number, ballot, **vars(progress), locked=locked)
            self.memory.slot = slot = replace(slot, promised=ballot, promise=self.keyring.sign(promise))
        assert slot.promise
        return Promised(slot.promise, slot.lock)

    def _accept(self, proposal: Proposal) -> Reply:
        slot, ballot = self.slot, proposal.vote.statement.ballot
        if slot.promised and not slot.allows_ballot(ballot):
            return Refused(slot.number, slot.promised)
        self.verifier.check_proposal(self.chain, proposal)
        if slot.promised != ballot:  # only a member that has promised knows what it can go back to
            return Refused(slot.number, slot.promised or ballot)
        if slot.vote and slot.vote.statement.ballot == ballot:
            # It votes once in a ballot; a proposer that proposes twice has signed two votes (V5).
            if slot.vote.statement.digest != proposal.vote.statement.digest:
                self._accuse(slot.proposers, proposal.vote)
                return Refused(slot.number, ballot)
        else:
            vote = self.keyring.sign(Vote("accept", slot.number, ballot, proposal.vote.statement.digest))
            self.memory.slot = slot = replace(slot, vote=vote, proposers=proposal.vote)
        assert slot.vote
        return Voted(slot.vote)

    def _commit(self, lock: Lock) -> Reply:
        slot = self.slot
        if slot.promised and not slot.allows_ballot(lock.ballot):
            return Refused(slot.number, slot.promised)
        self.verifier.check_lock(self.chain.current, lock)
        for vote in lock.votes:
            self._accuse(slot.proposers, vote)
        if slot.promised != lock.ballot:
            return Refused(slot.number, slot.promised or lock.ballot)
        if slot.lock is None or lock.ballot > slot.lock.ballot:
            self.memory.slot = replace(slot, lock=lock)
        digest = self.verifier.digest(self.chain.current, lock.view)
        return Voted(self.keyring.sign(Vote("commit", slot.number, lock.ballot, digest)))

    def _accuse(self, one: Signed[Vote] | None, other: Signed[Vote]) -> None:
        """Keep two votes of one member as proof of its guilt if they contradict each other (V5)."""
        if one is None or one.signer in {guilt.id for guilt in self.memory.guilt}:
            return
        try:
            self.verifier.check_guilt(guilt := Guilt(one, other))
        except InvalidError:
            return
        self.memory.guilt.append(guilt)

    def _release(self, release: Release) -> None:
        slot = self.slot
        if release.number != slot.number or not (slot.held and slot.promised and release.ballot >= slot.promised):
            return
        self.verifier.check_release(self.chain.current, release)
        lock = slot.lock if slot.lock and slot.lock.ballot >= release.ballot else None  # V6: lower locks are void
        self.memory.slot = replace(slot, promised=release.ballot, released=release.ballot, lock=lock)

    def follow_rewinds(self) -> bool:
        """Go on to the views that the operators have set; return whether there are any."""
        before = self.chain.current
        while rewind := self.verifier.rewind_after(self.chain.current):
            self.chain.extend(rewind.view)
            self.memory.decisions.append(rewind)
            # What was signed for its number or later counts no more.
            number = rewind.view.number
            self.memory.guilt = [one for one in self.memory.guilt if one.one.statement.number < number]
        return self.chain.current != before

    def _learn(self, decisions: Sequence[Decision]) -> Reply:
        for decision in decisions:
            present = self.chain.current
            if decision.view.number > present.number + 1:
                return Behind(present.number)
            if decision.view.number == present.number + 1:
                self.verifier.check_decision(present, decision)
                self.chain.extend(decision.view)
                self.memory.decisions.append(decision)
                self._forget(decision.view)
                self.follow_rewinds()
            elif decision.view != self.chain.of(decision.view.number):
                raise InvalidError(self._contradiction(decision))
        return Heard()

    def _contradiction(self, decision: Decision) -> str:
        """Return why a different view of a decided number is refused, and whether it came with proof."""
        number = decision.view.number
        try:
            _require(number > 0, "another view 0")
            self.verifier.check_decision(self.chain.of(number - 1), decision)
        except InvalidError as error:
            return f"another view {number} than the one that was decided: {error}"
        return (
            f"two views of number {number} were decided: more members lie than `faulty_members` allows for, or two "
            "federations have met"
        )

    def _forget(self, view: View) -> None:
        """Drop consents and proofs against members that are now expelled."""
        self.memory.consents = [one for one in self.memory.consents if one.statement.id not in view.expelled]
        self.memory.guilt = [one for one in self.memory.guilt if one.id not in view.expelled]

    def _consent(self, request: Expel, most: int) -> Reply:
        if request.id == self.id:
            return Denied(f"{self.id} cannot consent to its own expulsion; tell it to leave")
        _require(request.id in self.rules.ids, f"{request.id} is no member of the federation")
        if request.id in self.chain.current.expelled:
            return self.since(request.number, most)
        if request.id not in self.consented:
            self.memory.consents.append(self.keyring.sign(Consent(request.id)))
        return Heard()


# A proposer's part.

State = Literal["asking", "proposing", "confirming", "decided", "released", "preempted", "superseded", "no_quorum"]


class Attempt:
    """A member's attempt, in one ballot, to have the next view decided. It takes the members' replies and returns the
    requests to send; its driver tells it which members do not answer, and sends the views to those that are behind.

    asking -> proposing -> confirming -> decided | released, and from each of the first three to preempted (another
    ballot came first: try again later, with a higher counter), superseded (the number was decided without this
    proposer) or no_quorum (too few answer, or too few members would be left: try again later).

    The proposer's own acceptor is asked first: its promise is on disk before others see the ballot, so that the ballot
    is not used for something else after a crash. Silent members are asked last, and also through those that have
    promised: a relayed promise counts like one received directly, as it is signed.
    """

    def __init__(self, acceptor: Acceptor, above: Ballot | None, change: MembershipChange) -> None:
        """above: the highest ballot that has preempted this proposer. Raises ValueError if it is not a member."""
        self._chain, self._verifier, self._keyring = acceptor.chain, acceptor.verifier, acceptor.keyring
        self._rules, self._change, self._present = acceptor.rules, change, acceptor.chain.current
        self.number, self.ballot, own = self._present.number + 1, acceptor.next_ballot(above), acceptor.id
        if own not in self._present.members:
            raise ValueError(f"{own} is not a member of view {self._present.number}")
        self.state: State = "asking"
        self.lock: Lock | None = None
        """The highest lock that the promises name (V2), then this attempt's own."""
        self.decision: Decision | None = None
        self.preempted_by: Ballot | None = None
        self.announced: dict[str, Signed[Announcement]] = {}
        """Announcements that members have raised as objections to promises."""
        self._known: dict[str, Signed[Announcement]] = {}
        self._prepare = acceptor.keyring.sign(Prepare(self.number, self.ballot))
        self._promises: dict[str, Promised] = {}
        self._votes: dict[str, Signed[Vote]] = {}
        self._waiting: set[str] = set()
        self._refused = set[str]()
        """Members that refused, having accepted another ballot: they are there, so no view is proposed without them."""
        self._proposal: Proposal | None = None
        self._asked = [id for id in self._present.members if id not in _expelled(change.evidence)]
        others = [id for id in self._asked if id not in change.suspects and id != own]
        self._steps = [[own], others, [id for id in self._asked if id in change.suspects and id != own]]
        """The members to ask for a promise, one step after the other."""
        self._to_send: dict[str, Request] = {}
        self._ask_next()

    @property
    def over(self) -> bool:
        return self.state not in ("asking", "proposing", "confirming")

    def hold_against(self, announced: Iterable[Signed[Announcement]]) -> None:
        """Compare the promises with these announcements (V4)."""
        self._known |= {one.signer: one for one in announced}

    def requests(self) -> dict[str, Request]:
        """Return the requests to send now, by member, each once; the last ones come when the attempt is over."""
        given, self._to_send = self._to_send, {}
        return given

    def on_reply(self, member: str, reply: Reply) -> None:
        """Take a member's reply. One that no honest member gives counts as no reply, and raises InvalidError."""
        if self.over:
            return
        try:
            if member in self._waiting:
                self._handle(member, reply)
        except InvalidError:
            self.on_no_reply(member)
            raise

    def on_no_reply(self, member: str) -> None:
        """Go on without a reply of this member."""
        self._waiting.discard(member)
        if not self.over and not self._waiting and not self._to_send:
            self._go_on()

    def _handle(self, member: str, reply: Reply) -> None:
        match reply:
            case Promised() if self.state == "asking":
                self._take_promise(reply, member)
            case Relayed(promises) if self.state == "asking":
                for one in promises:
                    if one.promise.signer in self._asked:
                        self._take_promise(one, one.promise.signer)
            case Voted(vote) if self.state in ("proposing", "confirming"):
                self._take_vote(member, vote)
            case Objection(announced=announced):
                for known in announced[: len(self._present.members)]:
                    self._verifier.check_signed(known)
                    self.announced[known.signer] = known
            case Refused(number=number, promised=promised) if number == self.number:
                self._refused.add(member)
                if promised > self.ballot:
                    self.preempted_by = max(promised, self.preempted_by or promised)
            case Decided(decisions) if decisions and decisions[0].view.number == self.number:
                self._verifier.check_decision(self._present, decisions[0])
                self._become("superseded")
        self.on_no_reply(member)

    def _take_promise(self, promised: Promised, member: str) -> None:
        if member in self._promises:
            return  # the first promise counts: another one could take back the lock that came with it
        self._verifier.check_promised(self._present, promised, member, self.ballot)
        if (lock := promised.lock) and (self.lock is None or lock.ballot > self.lock.ballot):
            self.lock = lock
        self._promises[member] = promised

    def _take_vote(self, member: str, vote: Signed[Vote]) -> None:
        phase: Phase = "accept" if self.state == "proposing" else "commit"
        assert self._proposal
        digest = self._proposal.vote.statement.digest
        _require(vote.signer == member, "a vote by another")
        _require(vote.statement == Vote(phase, self.number, self.ballot, digest), "a vote for something else")
        self._verifier.check_signed(vote)
        self._votes[member] = vote

    def _send(self, requests: Mapping[str, Request]) -> None:
        self._to_send, self._waiting = dict(requests), {*requests}

    def _ask_next(self) -> None:
        """Ask the members of the next step; the last ones, which are silent, through the others as well."""
        step = self._steps.pop(0)
        last = not self._steps
        missing = [id for id in self._asked if id not in self._promises] if last else step
        requests: dict[str, Request] = {id: AskPromise(self._prepare) for id in step}
        if last and missing and self._keyring.signs:
            relay = Relay(self._prepare, tuple(missing))
            requests |= {id: relay for id in self._promises if id != self.ballot.proposer}
        if requests:
            self._send(requests)
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Take the next step, now that no more replies are expected."""
        if self.state == "asking":
            if self.ballot.proposer not in self._promises or self._refused - self._change.withholding:
                self._fail()
            elif self._steps:
                self._ask_next()
            else:
                self._choose()
        elif not self._verifier.is_quorum(self._present, self._votes):
            self._fail()
        elif self.state == "proposing":
            self._confirm()
        else:
            self._decide()

    def _fail(self) -> None:
        self._become("preempted" if self._refused else "no_quorum")
        if self._present.tolerates(self._rules.faulty):  # no other ballot is accepted in its turn (T2)
            self._to_send = dict.fromkeys(self._promises, Yield(self.number, self.ballot))

    def _choose(self) -> None:
        """Propose a view, or no change (V2), now that no more promises are expected."""
        change, promises = self._change, tuple(one.promise for one in self._promises.values())
        held = {one.signer: one.statement for one in promises}
        known = (self._known[id] for id in self._known if is_less(held.get(id), self._known[id].statement, self._chain))
        grounds = Grounds(promises, self.lock, tuple(known), (), change.evidence, change.leaves, change.missing)
        view = self.lock.view if self.lock else None
        if view is None:
            view = self._wanted(grounds)
            if view is None and change.entries:
                grounds = replace(grounds, entries=change.entries)
                view = self._wanted(grounds)
            if view is None and self._promises.keys() != {*self._present.members}:
                self._fail()
                return
        vote = self._keyring.sign(Vote("accept", self.number, self.ballot, self._verifier.digest(self._present, view)))
        self._proposal = proposal = Proposal(view, vote, grounds)
        try:
            self._verifier.check_proposal(self._chain, proposal)
        except InvalidError:  # most often too few promises
            self._fail()
            return
        self._become("proposing")
        self._send(dict.fromkeys(self._promises, Propose(proposal)))

    def _wanted(self, grounds: Grounds) -> View | None:
        """Return the view that follows from the grounds; None for no change, or a change that is not wanted."""
        view = next_view(self._chain, self.ballot.proposer, grounds, self._rules)
        lacking = self._change.unanimous and len(grounds.promises) < len(self._asked)
        return None if view is None or lacking or len(view.members) < self._change.min_members else view

    def _confirm(self) -> None:
        assert self._proposal
        view, grounds = self._proposal.view, self._proposal.grounds
        evidence = grounds.lock.evidence if grounds.lock and grounds.lock.view else grounds.evidence
        lock = Lock(self.number, self.ballot, view, tuple(self._votes.values()), evidence)
        self.lock, self._votes = lock, {}
        self._become("confirming")
        self._send(dict.fromkeys(self._promises, Confirm(lock)))

    def _decide(self) -> None:
        assert self.lock
        view, votes = self.lock.view, tuple(self._votes.values())
        self._become("decided" if view else "released")
        if view is None:
            release = Release(self.number, self.ballot, votes)
            self._to_send = dict.fromkeys(self._present.members, release)
            return
        self.decision = Decision(view, self.ballot, votes, self.lock.evidence)
        those = {*self._present.members, *view.members}
        self._to_send = {id: Decided((self.decision,)) for id in self._rules.ids if id in those}

    def _become(self, state: State) -> None:
        self.state = state
        self._waiting = set()


PHASES_OF_ATTEMPT = 3
"""The phases are promise, accept and commit."""
MAX_PAUSE_PHASES = 900
"""The longest time for which a member is ignored after its turn (T3), in phases. If it were much shorter, a liar could
always have a turn at one of many members."""


class Turns:
    """The turns of all members, as one member sees them."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        """seconds: how long a phase may take."""
        self._seconds, self._clock = seconds, clock
        self._holder = ""
        """The member that had the last turn."""
        self._began = self._until = -inf
        self._charged = True
        """Whether the last turn is counted in `_spent` already."""
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._free_at: defaultdict[str, float] = defaultdict(lambda: -inf)
        self._raised: defaultdict[str, float] = defaultdict(lambda: -inf)
        """When each member has last raised this one's counter towards a ballot far above all others."""
        self._returns: defaultdict[str, tuple[float, float]] = defaultdict(lambda: (-inf, 0.0))
        """When each member has last made others' turns forgotten, and for how long it cannot do so again."""

    @property
    def over_for(self) -> float:
        """Seconds since the last turn; 0 while one lasts."""
        return max(0.0, self._clock() - self._until)

    def is_free(self, member: str) -> bool:
        """Return whether a new ballot by that member would be accepted."""
        self._charge()
        return self._charged and self._clock() >= self._free_at[member]

    def try_acquire(self, member: str) -> bool:
        """Return whether a new ballot by that member is accepted (T1); if so, its turn begins."""
        if not self.is_free(member):
            return False
        self._holder, self._began, self._charged = member, self._clock(), False
        self._until = self._began + self._seconds
        return True

    def advance(self, member: str) -> None:
        """Extend that member's turn, as a phase of its attempt is completed (T1)."""
        if not self._charged and self._holder == member:
            self._until = min(self._clock() + self._seconds, self._began + PHASES_OF_ATTEMPT * self._seconds)

    def end(self, member: str | None = None) -> None:
        """End that member's turn (T2); None: whoever has it."""
        if member in (None, self._holder):
            self._until = min(self._until, self._clock())
            self._charge()

    def forget(self) -> None:
        """End the turn and forget all earlier ones, as a view is decided (T4)."""
        self._forget_all_but("")
        self._returns.clear()

    def on_return(self, member: str) -> None:
        """End and forget the turns of others, as a silent member answers again (T4)."""
        now, (before, pause) = self._clock(), self._returns[member]
        if now >= before + pause:
            self._returns[member] = now, 2 * max(pause, self._seconds)
            self._forget_all_but(member)

    def _forget_all_but(self, member: str) -> None:
        if self._holder != member:
            self._until, self._charged = min(self._until, self._clock()), True
        for turns in (self._spent, self._free_at):
            for other in turns.keys() - {member}:
                del turns[other]

    def may_raise(self, member: str) -> bool:
        """Return whether a ballot of that member that is too far above all others may raise this member's counter now;
        it may do so seldom enough for others to keep up."""
        now = self._clock()
        if now - self._raised[member] < self._seconds:
            return False
        self._raised[member] = now
        return True

    def _charge(self) -> None:
        if self._charged or self._clock() < self._until:
            return
        self._charged = True
        self._spent[self._holder] += self._until - self._began
        turns = min(self._spent[self._holder] / self._seconds, 32)
        self._free_at[self._holder] = self._until + self._seconds * min(2 * (2**turns - 1), MAX_PAUSE_PHASES)

"""How the members decide on the next view, although up to f of them lie and any of them crash.

The protocol is single-decree PBFT with a proposer that gathers the votes, one instance for each number of a view, in
the form in which Lamport derives it from Paxos (L. Lamport, "Byzantizing Paxos by Refinement", DISC 2011, with a proof
checked by TLAPS; M. Castro, B. Liskov, "Practical Byzantine Fault Tolerance", OSDI 1999). State by state:

| here | Lamport | PBFT | what it does |
|---|---|---|---|
| `Prepare` | 1a | new view | a member asks all to listen to no lower ballot; the ballot is its own |
| `Promise` | 1b | view-change | signed; names the lock held, and how the member stands in the training |
| `Proposal` | 1c | new-view, pre-prepare | a view with a quorum of promises from which everybody can work it out |
| `Vote` "accept" | 2av | prepare | signed, once in a ballot |
| `Lock` | set of 2av | prepared certificate | a quorum of these: nothing else can be decided in this ballot |
| `Vote` "commit" | 2b | commit | signed, with the lock on disk |
| `Decision` | chosen | committed-local | a quorum of these: decided, and provable to whoever hears of it |

A quorum is more than (n + f)/2 of n members (`View.is_quorum`), so any two share an honest member. It follows: in one
ballot only one value gets a lock, as no honest member votes twice; and a higher ballot can only carry on what was
decided in a lower one, as among its quorum of promises is an honest member that committed, which names that lock or a
higher one.

- **V1 Promise.** Who has promised starts no round until the number is decided or nothing changes, and announces no
  later round on its disk than the one it has promised to be able to go back to. What it answers is on disk before.
- **V2 Which view.** The one with the highest lock that is named by the promises. Without one, what `next_view` makes
  of them: members are those who promise, without who leaves, with who enters. Who does not promise can be left out
  only if whoever votes for it has had no answer from it either (the driver's part: `Membership`).
- **V3 From which round.** If all promise, the view is *planned*: it begins after the last round that anybody has
  begun. Otherwise what has begun is void, and all go back to the last round that each who promises can go back to. Who
  was taken in later than that round is taken in there once more, with the private state it came with, unless that
  would be void. Where all go back to the beginning, nobody is taken in: all begin.
- **V4 Words against deeds.** Who promises less than it has announced has lost its disk: it is left out, and nobody
  goes back for it. Who has begun a round cannot be further ahead of the others than rule R6 lets it, whatever it says.
- **V5 Expulsion.** By the signed consent of a quorum, or by two votes of one member that contradict each other.
- **V6 No change** is a value like any other: only when a quorum has committed to it may anybody begin rounds again.
  Lower locks are void then, so that no view turns up later that was worked out before those rounds began.

Whose attempts one member listens to (`Turns`), so that nobody holds up the rest for ever, nor outdoes others again and
again. Safety never rests on this: a ballot that is passed over here is as good as lost on its way. Progress does, as
two who outdo each other decide nothing (PBFT has a fixed order of primaries and ever longer timeouts for it).

- **T1** A turn belongs to the member whose new ballot was listened to. While it lasts no other ballot is, nor the next
  of the same member, as each costs a write to the disk. It lasts as long as a phase may take, from the last phase that
  was completed.
- **T2** Whose attempt comes to nothing says so (`Yield`), and its turn is over.
- **T3** After a turn its member is not listened to for a while, which grows exponentially with all the time that its
  turns have taken since the last view: those in which several members listen to it at different times end, too.
- **T4** All of that is forgotten once a view is decided, or one answers again that had been silent: then those who
  have tried in vain are as good as any.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import inf
from typing import Literal

from peer.views import view as reasons
from peer.views.signing import Authorities, Keyring
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
    """Everybody's, as the spec orders them."""
    rounds: int
    """Of the run."""
    faulty: int = 0
    """f: how many members may lie at the same time."""
    min_members: int = 1
    """Members of every view."""
    absence: float = 30.0
    """Seconds of silence after which a member counts as lost."""


@dataclass(frozen=True)
class MemberProgress:
    """How a member stands in the training, as `Promise` says it."""

    durable: int
    oldest: int
    started: int
    private: int


NO_PROGRESS = MemberProgress(durable=-1, oldest=0, started=-1, private=-1)
"""Of whoever is asked for no promise."""


@dataclass(frozen=True)
class MembershipChange:
    """What a proposer would have. Who does not promise is left out anyway."""

    leaves: bool = False
    """Itself; it plays to the end of the view before."""
    entries: tuple[Signed[Entry], ...] = ()
    min_members: int = 1
    """Fewer members it never proposes."""
    stubborn: frozenset[str] = frozenset()
    """Members that have answered without a promise for so long that they count as lost. Any other that listens to
    another ballot is there: nothing is proposed without it."""
    unanimous: bool = False
    """It proposes nothing unless everybody promises who is not expelled: nobody counts as lost yet."""
    missing: tuple[str, ...] = ()
    evidence: Evidence = NO_EVIDENCE
    """Who is expelled is asked for nothing, and its promises count for nothing."""
    suspects: frozenset[str] = frozenset()
    """Who is silent; asked last, and by way of the others too."""


# What follows from what.


def next_view(chain: ViewChain, proposer: str, grounds: Grounds, rules: Rules) -> View | None:
    """The view that follows from all this; None if nothing is to change, or too few members would be left."""
    present = chain.current
    proved = {*_expelled(grounds.evidence)} - {*present.expelled}
    out = proved.union(present.expelled)
    promised = {one.signer: one.statement for one in grounds.promises if one.signer not in out}
    lost = _lost(chain, grounds)
    standing = {id: promise for id, promise in promised.items() if id not in lost}
    enter = {one.signer: one.statement.private for one in grounds.entries if one.signer not in out}
    enter = {id: private for id, private in enter.items() if id not in present.members}
    members = (standing.keys() - ({proposer} if grounds.leaves else set())) | enter.keys()
    least = min((promise.durable for promise in standing.values()), default=-1)
    # A member that has left is needed until all have the rounds before the present view.
    missing = grounds.missing if present.planned and least < present.first - 1 else ()
    if not (missing or members != {*present.members} or out != {*present.expelled}):
        return None
    if len(members) < max(rules.min_members, 1) or not standing:
        return None
    planned = standing.keys() == {*present.members} and not missing
    first = _after_all(present, standing, least) if planned else least + 1
    # Who was taken in and cannot go back so far is taken in there once more.
    shaken = {id: promise.private for id, promise in standing.items() if first <= promise.oldest}
    entrants = {**enter, **shaken} if first else {}
    kept = _kept(chain, first, rules.rounds)
    taken_in = tuple((id, kept(id, entrants[id])) for id in _ordered(entrants.keys() & members, rules.ids))
    silent = [id for id in present.members if id not in {*promised, *out}] + [*missing]
    gone = _ordered(lost & promised.keys(), rules.ids)
    news: list[reasons.ReasonNews] = [([id], _why_expelled(id, grounds.evidence)) for id in _ordered(proved, rules.ids)]
    news += [(silent, reasons.silent_reason(rules.absence)), (gone, reasons.FORGETFUL)]
    news += [([proposer] if grounds.leaves else [], reasons.LEAVES), (enter, reasons.TAKEN_IN)]
    outside = {*rules.ids} - {*present.members} - members
    return View(
        present.number + 1,
        _ordered(members, rules.ids),
        first,
        planned,
        taken_in,
        reasons.compose_reason(news, present.reason, outside, rules.ids),
        _ordered(out, rules.ids),
    )


def _lost(chain: ViewChain, grounds: Grounds) -> set[str]:
    """Who promises less than it has announced, or than a view that was decided says it has: its disk is gone."""
    promised = {one.signer: one.statement for one in grounds.promises}
    lost = {one.signer for one in grounds.announced if is_less(promised.get(one.signer), one.statement, chain)}
    return lost | {id for id, promise in promised.items() if promise.durable < chain.floor(id)}


def _after_all(present: View, standing: Mapping[str, Promise], least: int) -> int:
    """The first round that nobody has begun; not before the view's own first.

    By rule R6 nobody is more than W rounds ahead of its neighbours; nor these of theirs, so W is not the whole distance
    to the farthest member where not all have heard of it yet.
    """
    most = least + STALENESS_BOUND + len(present.members)
    return max(present.first, 1 + max(min(promise.started, most) for promise in standing.values()))


def is_less(promise: Promise | None, announced: Announcement, chain: ViewChain) -> bool:
    """Whether a member promises less than it has announced, but for rounds that are void since."""
    if promise is None or announced.view > chain.current.number:
        return False
    ceiling = chain.last_valid_round(announced.view)
    return promise.durable < (announced.round if ceiling is None else min(announced.round, ceiling))


def _kept(chain: ViewChain, first: int, rounds: int) -> Callable[[str, int], int]:
    """Of a member and the round of the private state that it brings to a view from `first` on: that round, or -1 where
    it is void there, or one that this member has never played."""
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


# What is to be believed.


class Verifier:
    """Tells what is proved; each method raises InvalidError, saying why, if something is not."""

    def __init__(self, rules: Rules, authorities: Authorities) -> None:
        self.rules, self._authorities = rules, authorities

    def digest(self, before: View, view: View | None) -> str:
        """What is voted on: the view after that one, or no change of it."""
        pair = [before.as_json(), view.as_json() if view else None]
        return sha256(canonical([self._authorities.federation, *pair])).hexdigest()

    def is_quorum(self, view: View, ids: Collection[str]) -> bool:
        return view.is_quorum(ids, self.rules.faulty)

    def check_signed(self, signed: Signed[Statement]) -> None:
        _require(signed.signer in self.rules.ids, f"{signed.signer} is no member of the federation")
        _require(self._authorities.is_valid(signed), f"the signature is not {signed.signer}'s")

    def check_promise(self, present: View, signed: Signed[Promise], ballot: Ballot) -> None:
        promise, most = signed.statement, self.rules.rounds
        _require(promise.ballot == ballot and promise.number == present.number + 1, "a promise of another ballot")
        _require(signed.signer in present.members, f"{signed.signer} is no member and promises")
        said = (promise.durable, promise.oldest, promise.started, promise.private)
        _require(max(said) <= most, f"{signed.signer} tells of round {max(said)} in a run of {most}")
        _require(promise.locked is None or promise.locked < ballot, "a promise with a lock of a later ballot")
        self.check_signed(signed)

    def check_promised(self, present: View, promised: Promised, by: str, ballot: Ballot) -> None:
        """That member's promise with its lock, or none: without the lock that it names it could hold up what was
        decided."""
        promise, lock = promised.promise, promised.lock
        _require(promise.signer == by, "a promise by another")
        self.check_promise(present, promise, ballot)
        named = promise.statement.locked
        _require((lock.ballot if lock else None) == named, "a promise without the lock that it names")
        if lock:
            self.check_lock(present, lock)

    def check_votes(self, votes: Sequence[Signed[Vote]], vote: Vote, present: View) -> None:
        """All are that vote, and by a quorum."""
        _require(all(one.statement == vote for one in votes), "votes that are not for the same")
        _require(self._quorum_of(votes, present), "votes by too few members")
        for one in votes:
            self.check_signed(one)

    def _quorum_of(self, signed: Sequence[Signed[Vote]], present: View) -> bool:
        signers = [one.signer for one in signed]
        return len({*signers}) == len(signers) and self.is_quorum(present, signers)

    def check_lock(self, present: View, lock: Lock) -> None:
        _require(lock.number == present.number + 1, "a lock of another number")
        vote = Vote("accept", lock.number, lock.ballot, self.digest(present, lock.view))
        self.check_votes(lock.votes, vote, present)
        if lock.view:
            self._check_follows(present, lock.view, lock.evidence)

    def check_decision(self, present: View, decision: Decision) -> None:
        view = decision.view
        vote = Vote("commit", view.number, decision.ballot, self.digest(present, view))
        self.check_votes(decision.votes, vote, present)
        self._check_follows(present, view, decision.evidence)

    def check_release(self, present: View, release: Release) -> None:
        vote = Vote("commit", release.number, release.ballot, self.digest(present, None))
        self.check_votes(release.votes, vote, present)

    def _check_follows(self, present: View, view: View, evidence: Evidence) -> None:
        """What no honest members would have decided, whoever has signed it, and who may be expelled."""
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
        """Everybody that it names may be expelled."""
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
        _require(self._authorities.signs, "without certificates nobody's guilt can be proved")
        _require(guilt.one.signer == guilt.other.signer, "votes by two members")
        _require(one.digest != other.digest and replace(one, digest=other.digest) == other, "no contradiction")
        self.check_signed(guilt.one)
        self.check_signed(guilt.other)

    def check_proposal(self, chain: ViewChain, proposal: Proposal) -> None:
        """It is its proposer's, and follows from its grounds."""
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
        # Only rounds that are being played to their end can miss anybody.
        playing = {id for number in chain.last_rounds(present.number) for id in chain.of(number).members}
        _require({*grounds.missing} <= playing - {*present.members}, "members missing that were to play no round")

    def check_entry(self, entry: Signed[Entry]) -> None:
        """One that can be in a proposal."""
        _require(entry.statement.private <= self.rules.rounds, f"{entry.signer} brings a round that never was")
        self.check_signed(entry)


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise InvalidError(why)


# A member's part.


@dataclass(frozen=True)
class Slot:
    """What a member has said about the view of one number."""

    number: int
    promised: Ballot | None = None
    """The highest ballot heard of."""
    released: Ballot | None = None
    """The highest in which a quorum has committed to no change."""
    promise: Signed[Promise] | None = None
    """What was promised in the highest ballot; asked again, it is said again."""
    vote: Signed[Vote] | None = None
    """To accept, the last one."""
    proposers: Signed[Vote] | None = None
    """That of the proposer, in the same ballot."""
    lock: Lock | None = None

    @property
    def held(self) -> bool:
        """Whether no round may begin."""
        return self.promised is not None and (self.released is None or self.promised > self.released)

    def allows_ballot(self, ballot: Ballot) -> bool:
        """Whether a ballot still counts."""
        return (self.promised is None or ballot >= self.promised) and (self.released is None or ballot > self.released)


@dataclass
class Memory:
    """What a member must never forget, as views.json has it: on disk before any answer leaves that follows from it."""

    id: Id
    decisions: list[Decision] = field(default_factory=list)
    slot: Slot = Slot(1)
    consents: list[Signed[Consent]] = field(default_factory=list)
    """Its own."""
    guilt: list[Guilt] = field(default_factory=list)
    """Of members of the present view."""
    entered: Number = 0
    """The number of the view in which this peer lives, or has last lived."""
    promised: Round = -1
    """The round to which it has last promised to be able to go back."""
    authorities: tuple[str, ...] = ()
    """CAs, in PEM, that this peer has trusted in this run."""
    version: Literal[2] = 2


class Acceptor:
    """Hears requests and answers them. `memory` must be on disk before an answer leaves.

    A driver whose own peer has lost its disk must not let it answer before a view has taken it in: it has forgotten
    what it had promised.
    """

    def __init__(self, memory: Memory, rules: Rules, keyring: Keyring) -> None:
        """InvalidError if the memory holds a view that was never decided."""
        self.memory, self.rules, self.keyring = memory, rules, keyring
        self.id, self.verifier = memory.id, Verifier(rules, keyring)
        self.chain = ViewChain([View(0, rules.ids, first=0)])
        for decision in memory.decisions:
            self.verifier.check_decision(self.chain.current, decision)
            self.chain.extend(decision.view)
        self.ignored_members: frozenset[str] = frozenset()
        """Whose attempts it passes over: enough consent that they are voted out. Known by asking, so not kept."""
        self._heard = 0
        """The counter up to which it has come by ballots that were too far above to be promised; not kept."""

    @property
    def slot(self) -> Slot:
        """For the view after the current one; what was said about an earlier one is over."""
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
    def consented(self) -> frozenset[str]:
        """To whose voting out this member consents."""
        return frozenset(one.statement.id for one in self.memory.consents)

    def next_ballot(self, above: Ballot | None = None) -> Ballot:
        """One that this peer has never used, higher than any it has promised and than `above`, as far as it may be."""
        known = self.slot.promised.counter if self.slot.promised else 0
        heard = above.counter if above else 0
        # Half as far as others bear: they need not have heard of the last one.
        return Ballot(max(known, min(heard, known + JUMP // 2 - 1)) + 1, self.id)

    def is_beyond(self, ballot: Ballot) -> bool:
        """Whether a ballot is further above all others than any that is promised: so no member reaches HIGHEST."""
        return ballot.counter > self._known_counter + JUMP

    def approach(self, ballot: Ballot) -> None:
        """Come JUMP nearer to a ballot that is beyond: a member that was away catches up so."""
        self._heard = min(self._known_counter + JUMP, ballot.counter)

    @property
    def _known_counter(self) -> int:
        return max(self._heard, self.slot.promised.counter if self.slot.promised else 0)

    def since(self, number: int, most: int) -> Decided:
        """The views after that one, no more than so many: who is further behind asks again."""
        return Decided(tuple(self.memory.decisions[number : number + most]))

    def handle(self, request: Request, standing: MemberProgress = NO_PROGRESS, most: int = 64) -> Reply:
        """The answer to one request; InvalidError for what no honest member asks. At most so many views are told."""
        match request:
            case AskPromise(prepare):
                number, ballot = prepare.statement.number, prepare.statement.ballot
                return self._elsewhere(number, ballot, most) or self._promise(prepare, standing)
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
        """The answer if the request is not about the next view, or this peer or the proposer has no say in it."""
        present = self.chain.current
        if number <= present.number:
            return self.since(number - 1, most)
        if number > present.number + 1:
            return Behind(present.number)
        has_say = self.is_member and ballot.proposer in present.members and ballot.proposer not in self.ignored_members
        return None if has_say else Refused(number, ballot)

    def _promise(self, prepare: Signed[Prepare], standing: MemberProgress) -> Reply:
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
            promise = Promise(
                slot.number,
                ballot,
                standing.durable,
                standing.oldest,
                standing.started,
                standing.private,
                locked,
            )
            self.memory.slot = slot = replace(slot, promised=ballot, promise=self.keyring.sign(promise))
        assert slot.promise
        return Promised(slot.promise, slot.lock)

    def _accept(self, proposal: Proposal) -> Reply:
        slot, ballot = self.slot, proposal.vote.statement.ballot
        if slot.promised and not slot.allows_ballot(ballot):
            return Refused(slot.number, slot.promised)
        self.verifier.check_proposal(self.chain, proposal)
        if slot.promised != ballot:  # only who has promised knows to what it can go back
            return Refused(slot.number, slot.promised or ballot)
        if slot.vote and slot.vote.statement.ballot == ballot:
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
        """Takes note of it if these two contradict each other."""
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
        lock = slot.lock if slot.lock and slot.lock.ballot >= release.ballot else None
        self.memory.slot = replace(slot, promised=release.ballot, released=release.ballot, lock=lock)

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
            elif decision.view != self.chain.of(decision.view.number):
                raise InvalidError(self._contradiction(decision))
        return Heard()

    def _contradiction(self, decision: Decision) -> str:
        """Why another view of a number that was decided is not believed; and whether it was proved."""
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
        """What concerns only those who are members no more."""
        self.memory.consents = [one for one in self.memory.consents if one.statement.id not in view.expelled]
        self.memory.guilt = [one for one in self.memory.guilt if one.id not in view.expelled]

    def _consent(self, request: Expel, most: int) -> Reply:
        if request.id == self.id:
            return Denied(f"{self.id} cannot consent that it is voted out itself: tell it to leave")
        _require(request.id in self.rules.ids, f"{request.id} is no member of the federation")
        if request.id in self.chain.current.expelled:
            return self.since(request.number, most)
        if request.id not in self.consented:
            self.memory.consents.append(self.keyring.sign(Consent(request.id)))
        return Heard()


# A proposer's part.

State = Literal["asking", "proposing", "confirming", "decided", "released", "preempted", "superseded", "no_quorum"]
OVER: tuple[State, ...] = ("decided", "released", "preempted", "superseded", "no_quorum")


class Attempt:
    """One member's attempt, in one ballot, to have the next view decided. It takes the members' answers and gives the
    requests to send; its driver says of whom to wait no longer.

    asking -> proposing -> confirming -> decided | released, and from each of the first three to outdone (another ballot
    came before: try again later, with a higher counter), outdated (the number was decided without this proposer) or
    short (no quorum answers, or too few members would be left: try again later).

    The proposer's own acceptor is asked first: its promise is on disk before others hear of the ballot, so that after a
    crash it is not used again for something else. Who is silent is asked last, also by way of those who have promised:
    what they say of it counts as its own word, as it is signed.
    """

    def __init__(self, acceptor: Acceptor, above: Ballot | None, wish: MembershipChange) -> None:
        """above: the highest ballot that has outdone this proposer's. ValueError if it is no member."""
        self._chain, self._verifier, self._keyring = acceptor.chain, acceptor.verifier, acceptor.keyring
        self._rules, self._wish, self._present = acceptor.rules, wish, acceptor.chain.current
        self.number, self.ballot = self._present.number + 1, acceptor.next_ballot(above)
        if acceptor.id not in self._present.members:
            raise ValueError(f"{acceptor.id} is no member of view {self._present.number}")
        self.state: State = "asking"
        self.lock: Lock | None = None
        self.decision: Decision | None = None
        self.preempted_by: Ballot | None = None
        self.newer: tuple[Decision, ...] = ()
        """When outdated: the views that were decided in the meantime."""
        self.announced: dict[str, Signed[Announcement]] = {}
        """What others have held against promises."""
        self._known: dict[str, Signed[Announcement]] = {}
        out = {*_expelled(wish.evidence)}
        self._asked = [id for id in self._present.members if id not in out]
        self._prepare = acceptor.keyring.sign(Prepare(self.number, self.ballot))
        self._promises: dict[str, Promised] = {}
        self._votes: dict[str, Signed[Vote]] = {}
        self._waiting: set[str] = set()
        self._refused = set[str]()
        """Members that listen to another ballot: they are not away, so no view is proposed without them."""
        self._proposal: Proposal | None = None
        own = acceptor.id
        suspects = [id for id in self._asked if id in wish.suspects and id != own]
        others = [id for id in self._asked if id not in wish.suspects and id != own]
        self._steps = [[own], others, suspects]
        """Whom to ask for a promise, one step after the other."""
        self._to_send: dict[str, Request] = {}
        self._ask_next()

    @property
    def over(self) -> bool:
        return self.state in OVER

    def against(self, announced: Iterable[Signed[Announcement]]) -> None:
        """What members have announced, as far as this proposer knows: to be held against their promises."""
        self._known |= {one.signer: one for one in announced}

    def requests(self) -> dict[str, Request]:
        """What is to be sent now, by member; each is given once. The last ones come when the attempt is over."""
        given, self._to_send = self._to_send, {}
        return given

    def answered(self, member: str, reply: Reply) -> None:
        """Takes a member's answer; InvalidError for one that no honest member gives, which then has not answered."""
        if self.over:
            return
        try:
            if member in self._waiting:
                self._judge(member, reply)
        except InvalidError:
            self.failed(member)
            raise

    def failed(self, member: str) -> None:
        """The member cannot be reached, or takes too long."""
        self._waiting.discard(member)
        if not self.over and not self._waiting and not self._to_send:
            self._go_on()

    def _judge(self, member: str, reply: Reply) -> None:
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
                self.newer = decisions
                self._become("superseded")
                return
            case Behind(number) if number < self._present.number:
                pass  # its driver tells it
        self.failed(member)

    def _take_promise(self, promised: Promised, member: str) -> None:
        if member in self._promises:
            return  # the first one counts: another could take back the lock that it came with
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
        """The next step of asking; the last one, who is silent, by way of the others too."""
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
        """All answers are there that can be expected now."""
        if self.state == "asking":
            if self.ballot.proposer not in self._promises or self._refused - self._wish.stubborn:
                self._fall_short()
            elif self._steps:
                self._ask_next()
            else:
                self._choose()
        elif not self._verifier.is_quorum(self._present, self._votes):
            self._fall_short()
        elif self.state == "proposing":
            self._confirm()
        else:
            self._decide()

    def _fall_short(self) -> None:
        self._become("preempted" if self._refused else "no_quorum")
        if self._present.tolerates(self._rules.faulty):  # nobody else is listened to in its turn
            self._to_send = dict.fromkeys(self._promises, Yield(self.number, self.ballot))

    def _choose(self) -> None:
        """Which view to propose, now that no more promises are waited for."""
        wish, promises = self._wish, tuple(one.promise for one in self._promises.values())
        held = {one.signer: one.statement for one in promises}
        known = (self._known[id] for id in self._known if is_less(held.get(id), self._known[id].statement, self._chain))
        grounds = Grounds(promises, self.lock, tuple(known), wish.entries, wish.evidence, wish.leaves, wish.missing)
        view = self.lock.view if self.lock else None
        if view is None:
            view = next_view(self._chain, self.ballot.proposer, grounds, self._rules)
            everybody = self._promises.keys() == {*self._present.members}
            if view and (len(view.members) < wish.min_members or (wish.unanimous and len(promises) < len(self._asked))):
                view = None
            if view is None and not everybody:
                self._fall_short()
                return
        vote = self._keyring.sign(Vote("accept", self.number, self.ballot, self._verifier.digest(self._present, view)))
        self._proposal = proposal = Proposal(view, vote, grounds)
        try:
            self._verifier.check_proposal(self._chain, proposal)
        except InvalidError:  # too few promises, most often
            self._fall_short()
            return
        self._become("proposing")
        self._send(dict.fromkeys(self._promises, Propose(proposal)))

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
"""In an attempt: promise, vote, commit."""
LONGEST_PAUSE = 900
"""For which a member is not listened to after its turn, at most, in times of a phase. Much shorter, and a liar could
always be in its turn at one of many members."""


class Turns:
    """As one member sees them."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        """seconds: that a phase may take."""
        self._seconds, self._clock = seconds, clock
        self._holder = ""
        """Whose the last turn was."""
        self._began = self._until = -inf
        self._charged = True
        """Whether the time of the last turn is counted already."""
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._free_at: defaultdict[str, float] = defaultdict(lambda: -inf)
        self._raised: defaultdict[str, float] = defaultdict(lambda: -inf)
        """When each has last brought this member nearer to a ballot far above all others."""

    @property
    def over_for(self) -> float:
        """Seconds since the last turn was over; 0 while one lasts."""
        return max(0.0, self._clock() - self._until)

    def is_free(self, member: str) -> bool:
        """Whether a new ballot of that member would be listened to."""
        self._charge()
        return self._charged and self._clock() >= self._free_at[member]

    def take(self, member: str) -> bool:
        """Whether its new ballot is listened to; if so its turn begins."""
        if not self.is_free(member):
            return False
        self._holder, self._began, self._charged = member, self._clock(), False
        self._until = self._began + self._seconds
        return True

    def advance(self, member: str) -> None:
        """A phase of its attempt is over."""
        if not self._charged and self._holder == member:
            self._until = min(self._clock() + self._seconds, self._began + PHASES_OF_ATTEMPT * self._seconds)

    def end(self, member: str | None = None) -> None:
        """Its turn is over; None: whosever it is."""
        if member in (None, self._holder):
            self._until = min(self._until, self._clock())
            self._charge()

    def forget(self) -> None:
        """Nobody has had a turn."""
        self._until, self._charged = min(self._until, self._clock()), True
        self._spent.clear()
        self._free_at.clear()

    def may_raise(self, member: str) -> bool:
        """Whether a ballot of that member that is too far above all others brings this one nearer to it: seldom enough
        for others to keep up."""
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
        self._free_at[self._holder] = self._until + self._seconds * min(2 * (2**turns - 1), LONGEST_PAUSE)

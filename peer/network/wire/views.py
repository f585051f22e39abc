"""Questions and answers about views, between `peer.views` and the messages of the wire contract."""

from collections.abc import Sequence
from itertools import pairwise

from peer.network.limits import Limits
from peer.network.wire import messages
from peer.network.wire.foreign import plain
from peer.network.wire.frames import BadFrameError
from peer.network.wire.messages import Answer, Question
from peer.views.messages import (
    Accept,
    Accepted,
    Ask,
    Ballot,
    Behind,
    Consents,
    Decided,
    Denied,
    Enter,
    Expel,
    Heard,
    Leave,
    Poll,
    Prepare,
    Promise,
    Refused,
    Release,
    Reply,
    Request,
    Vote,
)
from peer.views.view import View


def ask(asked: Request, question: Question) -> None:
    """Write a question of `peer.views` into one that has its sender's name."""
    if isinstance(asked, Prepare | Accept | Release):
        question.number = asked.number
        question.ballot.CopyFrom(_ballot(asked.ballot))
    match asked:
        case Prepare():
            question.prepare.SetInParent()
        case Accept(view=view):
            question.accept.CopyFrom(_view(view))
        case Release():
            question.release.SetInParent()
        case Decided(views=views):
            question.decided.views.extend(map(_view, views))
        case Ask(number=number):
            question.number = number
            question.ask.SetInParent()
        case Enter(number=number, id=id, private=private):
            question.number = number
            question.enter.id, question.enter.private = id, private
        case Leave(number=number):
            question.number = number
            question.leave.SetInParent()
        case Expel(number=number, id=id):
            question.number, question.expel = number, id
        case Poll(number=number):
            question.number = number
            question.poll.SetInParent()


def answer(answered: Reply) -> Answer:
    match answered:
        case Promise(accepted=accepted):
            told = messages.Promise(ballot=_ballot(answered.ballot), durable=answered.durable, oldest=answered.oldest)
            told.started, told.private = answered.started, answered.private
            if accepted:
                told.accepted.CopyFrom(_ballot(accepted.ballot))
                told.view.CopyFrom(_view(accepted.view))
            return Answer(promise=told)
        case Accepted(ballot=ballot):
            return Answer(accepted=_ballot(ballot))
        case Refused(promised=ballot):
            return Answer(outdone=_ballot(ballot))
        case Decided(views=views):
            return Answer(decided=messages.Views(views=map(_view, views)))
        case Behind(number=number):
            return Answer(behind=number)
        case Consents(ids=ids):
            return Answer(consents=messages.Consents(ids=ids))
        case Denied(why=why):
            return Answer(denied=why)
    return Answer(heard=messages.Heard())


class Reader:
    """Takes what other members of the spec say; BadFrameError for what no member says."""

    def __init__(self, members: Sequence[str], limits: Limits) -> None:
        self._places, self._limits = {id: place for place, id in enumerate(members)}, limits

    def asked(self, question: Question) -> Request:
        match question.WhichOneof("question"):
            case "prepare":
                return Prepare(question.number, self._own(question))
            case "accept":
                return Accept(question.number, self._own(question), self._next(question.accept, question.number))
            case "release":
                return Release(question.number, self._own(question))
            case "decided":
                return self._decided(question.decided)
            case "ask":
                return Ask(question.number)
            case "enter" if question.enter.id == question.id:
                return Enter(question.number, question.id, question.enter.private)
            case "leave" if question.id == question.to:
                return Leave(question.number)
            case "expel" if question.id == question.to:
                self._known(question.expel)
                return Expel(question.number, question.expel)
            case "poll":
                return Poll(question.number)
        raise BadFrameError("what it asked is no question about views")

    def answered(self, answer: Answer, number: int) -> Reply:
        """Of a question about the view of that number."""
        match answer.WhichOneof("answer"):
            case "promise":
                return self._promise(answer.promise, number)
            case "accepted":
                return Accepted(number, self._ballot(answer.accepted))
            case "outdone":
                return Refused(number, self._ballot(answer.outdone))
            case "decided":
                return self._decided(answer.decided)
            case "behind":
                return Behind(answer.behind)
            case "consents":
                return Consents(tuple(id for id in answer.consents.ids if self._known(id) >= 0))
            case "denied":
                return Denied(answer.denied)
            case "heard":
                return Heard()
        raise BadFrameError("what it answered is no answer about views")

    def _promise(self, promise: messages.Promise, number: int) -> Promise:
        accepted = None
        if promise.HasField("view"):
            accepted = Vote(self._ballot(promise.accepted), self._next(promise.view, number))
        return Promise(
            number,
            self._ballot(promise.ballot),
            durable=promise.durable,
            oldest=promise.oldest,
            started=promise.started,
            private=promise.private,
            accepted=accepted,
        )

    def _decided(self, told: messages.Views) -> Decided:
        views = tuple(map(self._view, told.views))
        if any(after.number != before.number + 1 for before, after in pairwise(views)):
            raise BadFrameError("it left out views between others")
        return Decided(views)

    def _next(self, view: messages.View, number: int) -> View:
        if view.number != number:
            raise BadFrameError(f"it told of view {view.number}, and {number} was asked about")
        return self._view(view)

    def _own(self, question: Question) -> Ballot:
        """Nobody asks in an attempt of another's."""
        if question.ballot.proposer != question.id:
            raise BadFrameError("it asked in the name of another")
        return self._ballot(question.ballot)

    def _ballot(self, ballot: messages.Ballot) -> Ballot:
        self._known(ballot.proposer)
        return Ballot(ballot.counter, ballot.proposer)

    def _view(self, view: messages.View) -> View:
        places, out = [self._known(id) for id in view.members], [self._known(id) for id in view.expelled]
        if not places or any(some != sorted({*some}) for some in (places, out)):
            raise BadFrameError("the members of a view are not in the order of the spec")
        if {*places} & {*out}:
            raise BadFrameError("who was voted out is a member of its view")
        entrants = tuple((one.id, one.private) for one in view.entrants)
        for id, _ in entrants:
            self._known(id)
        reason = plain(view.reason, self._limits.characters)
        return View(view.number, tuple(view.members), view.first, view.planned, entrants, reason, tuple(view.expelled))

    def _known(self, id: str) -> int:
        if id not in self._places:
            raise BadFrameError("it told of somebody who is no member")
        return self._places[id]


def _ballot(ballot: Ballot) -> messages.Ballot:
    return messages.Ballot(counter=ballot.counter, proposer=ballot.proposer)


def _view(view: View) -> messages.View:
    entrants = [messages.Entrant(id=id, private=private) for id, private in view.entrants]
    return messages.View(
        number=view.number,
        members=view.members,
        first=view.first,
        planned=view.planned,
        entrants=entrants,
        reason=view.reason,
        expelled=view.expelled,
    )

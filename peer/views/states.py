"""The states of acceptor and proposal, and what leads from one to another; both check every step by these tables."""

from typing import Literal

from peer.views.messages import (
    Accept,
    Accepted,
    Ask,
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
)

AcceptorState = Literal["free", "held", "bound"]
ACCEPTOR: dict[AcceptorState, str] = {
    "free": "no promise is outstanding: rounds may be started",
    "held": "has promised: starts no round until the next view is decided, or the promise is given back",
    "bound": "has accepted a view: starts no round until one is decided",
}
ANSWERS: dict[type[Request], tuple[type[Reply], ...]] = {
    Prepare: (Promise, Refused, Behind, Decided),
    Accept: (Accepted, Refused, Behind, Decided),
    Release: (Heard,),
    Decided: (Heard, Behind),
    Ask: (Decided, Behind),
    Enter: (Heard, Decided),
    Leave: (Heard, Decided, Denied),
    Expel: (Heard, Decided, Denied),
    Poll: (Consents, Decided),
}
STEPS: dict[AcceptorState, dict[type[Request], tuple[AcceptorState, ...]]] = {
    "free": {Prepare: ("held",), Accept: ("bound",)},
    "held": {Accept: ("bound",), Release: ("free",), Decided: ("free",)},
    "bound": {Decided: ("free",)},
}
"""The states that a request can lead to; any request can also change nothing."""

ProposalState = Literal["asking", "accepting", "decided", "outdone", "outdated", "released", "short"]
TRANSITIONS: dict[ProposalState, tuple[ProposalState, ...]] = {
    "asking": ("accepting", "released", "outdone", "outdated", "short"),
    "accepting": ("decided", "outdone", "outdated", "short"),
    "decided": (),
    "outdone": (),
    "outdated": (),
    "released": (),
    "short": (),
}
PROPOSAL: dict[ProposalState, str] = {
    "asking": "collecting promises, first the proposer's own",
    "accepting": "asking all members to accept one view",
    "decided": "a quorum has accepted it",
    "outdone": "another ballot came before: try again later, with a higher counter",
    "outdated": "the number was decided without this proposer",
    "released": "a false alarm, or too few would be left: all have promised, and go on as before",
    "short": "no quorum answers, or too few members would be left: try again later",
}

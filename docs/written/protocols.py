"""The table of protocols: where each comes from, along which edges it sends, and what."""

from peer.protocols.base import Protocol
from peer.protocols.registry import PROTOCOLS, protocol_class


def protocols() -> str:
    """One row per protocol."""
    rows = ["| name | paper | edges | sends |", "|---|---|---|---|"]
    for name in PROTOCOLS:
        protocol = protocol_class(name)
        shown = protocol(name=name)
        rows.append(f"| `{name}` | {protocol.paper} | {shown.graph} | {sends(shown)} |")
    return "".join(f"{row}\n" for row in rows)


def sends(protocol: Protocol) -> str:
    """What leaves a peer: vectors with the numbers beside them, and records for all peers."""
    vectors = [
        share.vector + (f" + {share.scalars} number{'s' * (share.scalars > 1)}" if share.scalars else "")
        for share in protocol.shares(rounds=10)
    ]
    names = [f"`{record.name}`" for record in protocol.records]
    records = [f"record{'s' * (len(names) > 1)} {', '.join(names)}"] if names else []
    return "; ".join([*vectors, *records]) or "nothing"

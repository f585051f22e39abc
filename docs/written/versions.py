"""The table of formats."""

from peer.versions import FORMATS


def formats() -> str:
    """A row a format: where its number stands, the one that is written, and those that are read."""
    rows = ["| format | its number is in | writes | reads |", "|---|---|---|---|"]
    rows += [f"| {one.name} | {one.where} | {one.writes} | {one.span} |" for one in FORMATS]
    return "".join(f"{row}\n" for row in rows)

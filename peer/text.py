"""Text that others have chosen, made fit for a person's screen."""

LONGEST = 4000
"""Characters of one message: more nobody reads, and a hostile file may have names of megabytes."""


def printable(text: str) -> str:
    """Without control characters: what strangers send must not forge lines or move the cursor."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "?" for character in text)


def one_line(message: object) -> str:
    """What an error says, as one line of a terminal."""
    text = " ".join(str(message).splitlines())
    return printable(text) if len(text) <= LONGEST else f"{printable(text[:LONGEST])}…"

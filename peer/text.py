"""Text that others have chosen, made fit for a person's screen."""

LONGEST = 4000
"""Characters of one message: more nobody reads, and a hostile file may have names of megabytes."""


def number(value: float | None) -> str:
    """Four decimals, as papers print accuracies: 0.9646; fewer of a large number, 123.40, more of a tiny one; a dash
    for what is unknown."""
    if value is None:
        return "–"
    size = abs(value)
    if size >= 1e6 or 0 < size < 5e-5:
        return f"{value:.4g}"
    return f"{value:.{max(0, 4 - len(str(int(size))) + 1) if size >= 1 else 4}f}"


def printable(text: str) -> str:
    """Without control characters: what strangers send must not forge lines or move the cursor."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "?" for character in text)


def one_line(message: object) -> str:
    """What an error says, as one line of a terminal."""
    text = " ".join(str(message).splitlines())
    return printable(text) if len(text) <= LONGEST else f"{printable(text[:LONGEST])}…"

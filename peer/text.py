"""Text for people: numbers, durations, and foreign text made fit for a screen."""

LONG_S = 3 * 86_400
"""Seconds from which on a duration is given in whole days."""
MAX_MESSAGE_CHARACTERS = 4000
"""Characters of one message: nobody reads more, and a hostile file may have names of megabytes."""


def number(value: float | None) -> str:
    """Four decimals, as papers print accuracies: 0.9646; fewer of a large number, 123.40, more of a tiny one; a dash
    for what is unknown."""
    if value is None:
        return "–"
    size = abs(value)
    if size >= 1e6 or 0 < size < 5e-5:
        return f"{value:.4g}"
    return f"{value:.{max(0, 4 - len(str(int(size))) + 1) if size >= 1 else 4}f}"


def duration(seconds: float) -> str:
    """12 s, 3 min 20 s, 2 h 5 min, 7 days."""
    whole = round(seconds)
    if whole >= LONG_S:
        return f"{whole // 86_400} days"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def plural(count: int, thing: str) -> str:
    """1 restart, 2 restarts."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def printable(text: str) -> str:
    """Replace control characters: foreign text must not forge lines or move the cursor."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "?" for character in text)


def cut(text: str) -> str:
    """No more of a text than anybody reads."""
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else f"{text[:MAX_MESSAGE_CHARACTERS]}…"


def shown(text: str) -> str:
    """Foreign text as a screen shows it."""
    return printable(cut(text))


def one_line(message: object) -> str:
    """What an error says, as one line of a terminal."""
    return shown(" ".join(str(message).splitlines()))

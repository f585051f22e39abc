"""Numbers as a person reads them; what is unknown is a dash."""


def quantity(size: float | None) -> str:
    """Bytes with a decimal unit."""
    if size is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def duration(seconds: float) -> str:
    """12 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def plural(count: int, thing: str) -> str:
    """1 restart, 2 restarts."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"

"""Sizes as a person reads them; what is unknown is a dash."""


def quantity(size: float | None) -> str:
    """Bytes with a decimal unit."""
    if size is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"

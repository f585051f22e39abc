"""Files made up for trying tables of one's own: three practices whose patients differ in age."""

import sys
from pathlib import Path

import numpy as np

PRACTICES = {"north": 45, "south": 60, "west": 30}
"""The mean age of each one's patients."""


def write(directory: Path) -> None:
    """A CSV file a practice, as a German spreadsheet writes it."""
    directory.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    for name, mean_age in PRACTICES.items():
        lines = ["Nummer;Alter;Größe;Befund"]
        for number in range(1, 121):
            age, size = draw.normal(mean_age, 15), draw.normal(1.7, 0.1)
            said = "krank" if age / 15 + size / 0.1 + draw.normal(0, 0.5) > 20 else "gesund"
            lines.append(f"{name[0]}{number};{age:.1f};{size:.2f};{said}".replace(".", ","))
        lines.append(f"{name[0]}121;;1,70;gesund")  # an age that nobody has written down
        (directory / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "data"))

"""Files made up for the tutorial: three clinics with the same four columns, each as its own program writes them."""

import numpy as np

CLINICS = {"leeds": 62, "berlin": 48, "wien": 71}
"""The mean age of each one's patients."""


def rows(clinic: str, patients: int = 240) -> list[list[str]]:
    """Age, blood pressure and sugar, and whether the patient came back within a month."""
    draw = np.random.default_rng(list(CLINICS).index(clinic))
    age = draw.normal(CLINICS[clinic], 12, patients)
    pressure = draw.normal(110 + 0.4 * age, 12)
    sugar = draw.normal(5.6, 0.9, patients)
    risk = (age - 60) / 12 + (pressure - 134) / 12 + 1.5 * (sugar - 5.6)
    back = risk + draw.normal(0, 0.5, patients) > 0
    return [
        [f"{a:.0f}", f"{p:.1f}", f"{s:.2f}", "yes" if b else "no"]
        for a, p, s, b in zip(age, pressure, sugar, back, strict=True)
    ]


def german(row: list[str]) -> str:
    return ";".join(row).replace(".", ",")


header = ["age", "pressure", "sugar", "readmitted"]

with open("leeds.csv", "w", encoding="utf-8") as file:
    print(*[",".join(row) for row in [header, *rows("leeds")]], sep="\n", file=file)

with open("berlin.csv", "w", encoding="utf-8") as file:  # a number for each patient, and one age that is not known
    print("Fall", *header, sep=";", file=file)
    print("B0;;131,0;5,10;no", file=file)
    print(*[f"B{number};{german(row)}" for number, row in enumerate(rows("berlin"), 1)], sep="\n", file=file)

with open("wien.csv", "w", encoding="cp1252") as file:  # an older program, and a column that is nobody's business
    print(*header, "Straße", sep=";", file=file)
    print(*[f"{german(row)};Währinger Gürtel" for row in rows("wien")], sep="\n", file=file)

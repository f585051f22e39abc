"""What the page of a run shows, as plain JSON: the one document from which it draws itself, once or repeatedly.

A run's facts and sentences are in `runs`, ready to be read. What is drawn, and what goes into CSV files, are `tables`
of rows, each with the name of its run; so a page of several runs is one of longer tables.

The same tables are written as CSV, one file each, for programs and spreadsheets. Text that a spreadsheet would run as a
formula is made plain there, and no text in the JSON can end the element of the page in which it stands: peers choose
their own words.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from typing import Any, Literal

from peer.errors import FailedError
from peer.text import one_line

MAX_POINTS, MAX_ROUNDS = 10_000, 2000
"""Rows of `peer_rounds`, and of `rounds`, in a page."""
DRAWN = ("run", "peer", "round", "stretch", "value")
"""The columns of `peer_rounds` that are drawn."""
Row = dict[str, Any]
"""Values of one line of a table by column: numbers, texts, None."""
State = Literal["finished", "unfinished", "failed"]
Verdict = Literal["kept", "broken", "open"]
TABLES = ("rounds", "peer_rounds", "peers", "final", "confusion", "seconds", "edges", "moments", "ring", "neighbours")


@dataclass(frozen=True)
class Card:
    """A number at the top of the page. value: as in summary.json; shown: for people."""

    key: str
    name: str
    value: float | None
    shown: str
    note: str = ""
    better: Literal["up", "down", ""] = ""


@dataclass(frozen=True)
class Definition:
    """One of the paper's promises and whether it held, in a few words; what was counted; None: not known."""

    name: str
    words: str
    counted: str
    holds: bool | None


@dataclass(frozen=True)
class PrivacyWords:
    """The proof of privacy for a person. sentences: what was found; violations: each in a line."""

    verdict: Verdict
    title: str
    sentences: Sequence[str] = ()
    definitions: Sequence[Definition] = ()
    violations: Sequence[str] = ()


@dataclass(frozen=True)
class RunPart:
    """One run. label: its name in tables and legends. figure: the name of the figure that judges models, in words."""

    label: str
    protocol: str
    seed: int
    peers: int
    rounds: int
    completed: int
    state: State
    told: str
    """What became of it, in a sentence."""
    figure: str
    better: Literal["up", "down"]
    cards: Sequence[Card]
    privacy: PrivacyWords | None
    notes: Sequence[str] = ()
    """Sentences about changes of view, peers that misbehave, peers that are missing."""
    ring_cost: Sequence[float | None] = (None, None)
    """The ring's cost before and after ordering."""
    made: Mapping[str, str] = field(default_factory=dict)
    """What was run, in words: enough, with `settings`, to run it again."""
    settings: str = ""
    """All settings, as a federation.yaml."""
    classes: Sequence[str] = ()
    """The classes that the ring's figure shows, in order."""
    judged_classes: Sequence[str] = ()
    """The classes of which a closer look is drawn, in order."""


@dataclass(frozen=True)
class ReportDocument:
    """One run or several. differing: in what these differ; alike: whether one of them can be the best."""

    title: str
    runs: Sequence[RunPart]
    tables: dict[str, list[Row]] = field(default_factory=lambda: {name: [] for name in TABLES})
    differing: str = ""
    alike: bool = True

    def dump(self) -> str:
        return as_text({**vars(self), "runs": [asdict(run) for run in self.runs]})

    def thinned(self) -> "ReportDocument":
        """The document without what is not drawn: of very many rounds, every n-th, the first and the last are left."""
        rounds, peer_rounds = self.tables["rounds"], self.tables["peer_rounds"]
        every = max(ceil(len(rounds) / MAX_ROUNDS), ceil(len(peer_rounds) / MAX_POINTS), 1)
        last = max((row["round"] for row in (*rounds, *peer_rounds)), default=0)

        def drawn(rows: list[Row]) -> list[Row]:
            return [row for row in rows if row["round"] % every == 0 or row["round"] in (1, last)]

        points = [{name: row[name] for name in DRAWN if name in row} for row in drawn(peer_rounds)]
        peers = [{name: value for name, value in row.items() if name != "classes"} for row in self.tables["peers"]]
        note = (f"The curves show one round in {every}, and the first and the last.",) if every > 1 else ()
        runs = [replace(run, notes=(*run.notes, *note)) for run in self.runs]
        tables = {name: self._of_judged(name) for name in ("final", "confusion")}
        tables |= {"rounds": drawn(rounds), "peer_rounds": points, "peers": peers}
        return replace(self, runs=runs, tables=self.tables | tables)

    def _of_judged(self, table: str) -> list[Row]:
        """The rows of a closer look that are drawn: of each class its first figure."""
        rows = self.tables[table]
        first = next((row.get("figure") for row in rows if "class" in row), None)
        judged = {(run.label, name) for run in self.runs for name in run.judged_classes}

        named = ({(row["run"], row[of]) for of in ("class", "taken for") if of in row} for row in rows)
        return [
            row for row, of in zip(rows, named, strict=True) if of <= judged and (not of or row.get("figure") == first)
        ]


def titled(words: str) -> str:
    """Words with a capital first letter; the other letters stay as they are."""
    return f"{words[:1].upper()}{words[1:]}"


def as_text(content: object) -> str:
    """JSON that is safe within a page: no text in it can end the element, wherever it comes from.

    FailedError for a number that is not finite.
    """
    try:
        text = json.dumps(content, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise FailedError(f"what the peers have told cannot be shown: {one_line(error)}") from error
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


CSV_TABLES = ("rounds", "peer_rounds", "peers", "final", "confusion", "seconds", "edges", "moments")
"""The tables that are written as CSV; the others only say where something is drawn."""
LEADING_COLUMNS = ("run", "protocol", "seed", "peer", "from", "to", "vector", "kind", "round", "figure", "class")
"""The columns that say what a row is about."""


def as_csv(document: ReportDocument) -> dict[str, str]:
    """The CSV text of each table, by name; unknown values are empty cells. Those of a closer look are left out where
    there was none."""
    there = [name for name in CSV_TABLES if document.tables[name] or name not in ("final", "confusion")]
    return {name: _csv(document.tables[name]) for name in there}


def _csv(table: Sequence[Row]) -> str:
    """A column for each class instead of one for all; those that say what a row is about stand first."""
    rows = [row | {f"class {name}": share for name, share in row.get("classes", {}).items()} for row in table]
    rows = [{name: value for name, value in row.items() if name != "classes"} for row in rows]
    names = dict.fromkeys(name for row in rows for name in row)
    leading = [name for name in LEADING_COLUMNS if name in names]
    return csv_text([*dict.fromkeys([*leading, *names])], rows)


def csv_text(names: Sequence[str], rows: Iterable[Row]) -> str:
    """A table as CSV, with empty fields for unknown values."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writerow({name: as_cell(name) for name in names})
    writer.writerows({name: as_cell(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def as_trace(document: ReportDocument) -> str:
    """What each peer did when, in Chrome's trace format, which Perfetto opens: a process a run and a thread a peer."""
    events = [event for number, run in enumerate(document.runs) for event in _trace(document, run.label, number)]
    return json.dumps({"traceEvents": events})


def _trace(document: ReportDocument, run: str, number: int) -> Iterator[Row]:
    """One run: each peer's rounds with their phases one after the other, and beside them what else happened."""
    tables = {name: [row for row in rows if row["run"] == run] for name, rows in document.tables.items()}
    threads = {row["peer"]: at for at, row in enumerate(tables["peers"], 1)}

    def event(peer: str, name: str, seconds: float, **more: Any) -> Row:
        return {"name": name, "pid": number, "tid": threads.get(peer, 0), "ts": 1e6 * seconds, **more}

    yield event("", "process_name", 0, ph="M", args={"name": run})
    yield from (event(peer, "thread_name", 0, ph="M", args={"name": peer}) for peer in threads)
    for row in tables["peer_rounds"]:
        phases = {name: row[f"{name}_seconds"] for name in ("train", "communicate", "evaluate")}
        begin, told = row["time"] - sum(phases.values()), {name: row[name] for name in ("value", "train_loss")}
        for name, seconds in {f"round {row['round']}": sum(phases.values()), **phases}.items():
            yield event(row["peer"], name, begin, ph="X", dur=1e6 * seconds, args=told)
            begin += seconds if name in phases else 0
    for at, row in enumerate(tables["moments"]):
        about = {"cat": row["kind"], "id": f"{number}.{at}", "args": {"what": row["text"]}}
        for phase, time in (("b", row["begin"]), ("e", row["end"])):  # those of one peer may overlap
            yield event(row["peer"], f"{row['peer']}: {row['kind']}", time, ph=phase, **about)


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""The characters that begin a formula, or that a spreadsheet ignores before one."""


def as_cell(value: Any) -> Any:
    """Make a text plain that a spreadsheet would take for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value

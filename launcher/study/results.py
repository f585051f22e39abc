"""The tidy tables of a study: one row a cell, and one row a round of a cell; what each gained over which cell of
`solo`."""

import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence

from launcher.commands.compare import COMPARED
from launcher.headline import Headline
from launcher.page.document import Row, csv_text
from launcher.page.learning_curves import spread
from launcher.reports.summary_json import Summary
from launcher.reports.worth import collaboration_gains, standardised_alone
from launcher.study.grid import Cell, Label
from peer.files import write_atomically
from peer.spec.agreement import sha256, user_code, with_block
from peer.text import printable


def baselines(cells: Sequence[Cell], finished: Collection[str]) -> dict[str, Cell]:
    """By a cell's key its baseline, among cells whose keys are in `finished`: the peers alone, with the same data in
    the same way. Of several the one at the same place in the grid; `solo` itself has none."""
    alone: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.spec.protocol.name == "solo" and cell.key in finished:
            alone.setdefault(_compared(cell), []).append(cell)
    chosen = {}
    for cell in cells:
        local, place = cell.spec.protocol.local(), _other_labels(cell)
        fitting = [one for one in alone.get(_compared(cell), ()) if one.spec.protocol.local() == local]
        if fitting and cell.spec.protocol.name != "solo":
            chosen[cell.key] = min(fitting, key=lambda one: _other_labels(one) != place)
    return chosen


def _compared(cell: Cell) -> str:
    """The digest of all but the protocol: also of the files that it reads, as only these tell what is in them."""
    spec = with_block(cell.spec.agreement.content, ("data",), standardised_alone)
    modules = {name.partition(":")[0] for name in user_code({key: spec.get(key) for key in COMPARED})}
    read = {"data.path", "data.root", "model.weights", *modules}
    sources = {name: found for name, found in cell.sources.items() if name in read}
    return sha256({"spec": {key: spec.get(key) for key in COMPARED}, "sources": sources})


def _other_labels(cell: Cell) -> dict[str, Label]:
    return {axis: label for axis, label in cell.labels.items() if axis != "protocol"}


FIGURES = (
    *("rounds", "mean", "worst", "gini", "honest", "r50", "plateau_sigma", "weight_divergence"),
    *("mcg", "cgs", "least_gain", "ring_cost_before", "ring_cost_after", "ring_saving"),
    *("tensor_bytes_sent", "bytes_sent", "seconds", "commit", "model_sha256"),
)
"""The columns of what a finished cell has come to."""


def rows(cells: Sequence[Cell], failures: Mapping[str, str]) -> list[Row]:
    """A row a cell, in the grid's order. failures: by a cell's key, why it is not finished; its figures are None."""
    known = {cell.key: summary for cell in cells if (summary := cell.files.finished)}
    alone = baselines(cells, known.keys())
    made = []
    for cell in cells:
        figures = dict.fromkeys(FIGURES)
        if summary := known.get(cell.key):
            baseline = alone.get(cell.key)
            figures |= _result_columns(cell, summary, known[baseline.key] if baseline else None)
        headline = Headline.from_spec(cell.spec)
        judged = {"figure": headline.words, "better": headline.figure.better}
        of = cell_columns(cell)  # stands first, and last too: an axis may be called like a figure
        again = {"network": cell.network, "command": cell.command}
        made.append({**of, **again, "failure": printable(failures.get(cell.key, "")), **judged, **figures, **of})
    return made


def cell_columns(cell: Cell) -> Row:
    return {
        **cell.labels,
        "protocol": cell.labels.get("protocol", cell.spec.protocol.name),
        "peers": len(cell.spec.ids),
        "seed": cell.spec.seed,
        "spec": cell.key,
    }


def _result_columns(cell: Cell, summary: Summary, alone: Summary | None) -> Row:
    headline = Headline.from_spec(cell.spec)
    together = {one.id: value for one in summary.per_peer if (value := headline.value(one)) is not None}
    found = spread([*together.values()], headline)
    before, after = summary.ring_cost.get("before"), summary.ring_cost.get("after")
    return {
        "rounds": summary.rounds,
        **{name: found[name] for name in ("mean", "worst", "gini")},
        "honest": summary.honest_accuracy,
        "r50": summary.r50,
        "plateau_sigma": summary.plateau_sigma,
        "weight_divergence": cell.files.details.get("weight_divergence"),
        **_gains(together, alone, headline),
        "ring_cost_before": before,
        "ring_cost_after": after,
        "ring_saving": 1 - after / before if before and after is not None else None,
        "tensor_bytes_sent": sum(one.tensor_bytes_sent for one in summary.per_peer),
        "bytes_sent": sum(one.bytes_sent for one in summary.per_peer),
        "seconds": summary.wall_seconds,
        "commit": cell.files.details["commit"],
        "model_sha256": json.dumps({one.id: one.model_sha256 for one in summary.per_peer}),
    }


def _gains(together: Mapping[str, float], alone: Summary | None, headline: Headline) -> Row:
    solo = {one.id: value for one in alone.per_peer if (value := headline.value(one)) is not None} if alone else {}
    if not together or solo.keys() != together.keys():
        return {}
    found = collaboration_gains(together, solo, headline)
    return {"mcg": found["mcg"], "cgs": found["cgs"], "least_gain": min(found["gain"].values())}


def round_rows(cells: Sequence[Cell]) -> Iterator[Row]:
    """A row a round of every finished cell: means over its peers."""
    for cell in cells:
        if cell.files.finished:
            of = cell_columns(cell)
            yield from ({**of, **row, "evaluated": row["peers"], **of} for row in cell.files.details["rounds"])


def peer_rows(cells: Sequence[Cell]) -> Iterator[Row]:
    """A row for each figure of each peer of every finished cell: accuracies by test, and the task's figures with their
    intervals, if `final_evaluation` asks for some."""
    for cell in cells:
        summary, of = cell.files.finished, cell_columns(cell)
        for one in summary.per_peer if summary else ():
            known = {f"{test} accuracy": value for test, value in one.accuracy.items() if value is not None}
            for name, value in (known | one.figures).items():
                low, high = (one.final.intervals.get(name) if one.final else None) or (None, None)
                told = {"samples": one.samples, "figure": name, "value": value, "low": low, "high": high}
                yield {**of, "peer": one.id, **told, **of}


def write(cells: Sequence[Cell], failures: Mapping[str, str]) -> tuple[list[Row], list[Row]]:
    """Write all tables into the study's directory; return the rows of cells and of rounds."""
    directory, of_cells, by_round = cells[0].directory, rows(cells, failures), [*round_rows(cells)]
    write_atomically(directory / "rounds.parquet", as_parquet(by_round))
    for name, table in (("results", of_cells), ("peers", [*peer_rows(cells)])):
        if table:
            write_atomically(directory / f"{name}.csv", csv_text([*table[0]], table).encode())
            write_atomically(directory / f"{name}.parquet", as_parquet(table))
    return of_cells, by_round


def as_parquet(made: Sequence[Row]) -> bytes:
    """A column that holds a text anywhere is all texts: a file knows one type for each."""
    import pandas

    table = pandas.DataFrame.from_records(made)
    for name in {name for row in made for name, value in row.items() if isinstance(value, str)}:
        table[name] = table[name].map(str, na_action="ignore")
    file = io.BytesIO()
    table.to_parquet(file, index=False)
    return file.getvalue()

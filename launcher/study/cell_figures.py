"""The figures that show one cell: of each method in each place of the grid, at its first seed."""

from collections.abc import Iterator, Sequence

from launcher.reports import summary_json
from launcher.study.cell import Cell
from launcher.study.figures import Chart, file_name
from launcher.study.reputations import reputations_of
from launcher.study.results import kept, what
from launcher.study.ring_figure import ring_figure
from launcher.study.tables import elsewhere, place


def cell_figures(cells: Sequence[Cell], axes: Sequence[str]) -> dict[str, tuple[str, Chart]]:
    """By file name: the title and the chart."""
    made: dict[str, tuple[str, Chart]] = {}
    for words, cell in _shown(cells, axes).items():
        for kind, title, chart in _of(cell):
            made[file_name(f"{kind}-{words}", made)] = f"{title}: {words}, seed {cell.spec.seed}", chart
    return made


def _shown(cells: Sequence[Cell], axes: Sequence[str]) -> dict[str, Cell]:
    """By method and place in words, the finished cell with the first seed in the grid."""
    rows = [(what(cell), cell) for cell in cells if cell.finished]
    others = elsewhere([row for row, _ in rows], axes, "protocol")
    found: dict[str, Cell] = {}
    for row, cell in rows:
        where = f", {place(row, others)}" if others else ""
        found.setdefault(f"{row['protocol']}{where}", cell)
    return found


def _of(cell: Cell) -> Iterator[tuple[str, str, Chart]]:
    if ring := kept(cell).get("ring"):
        yield "ring", "The ring before and after ordering", ring_figure(ring)
    summary = summary_json.read(cell.files.summary)
    if summary and (found := reputations_of({one.id: one.notes for one in summary.per_peer})):
        said, chart = found
        yield "reputation", f"Reputations {said}", chart

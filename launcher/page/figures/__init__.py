"""One file a figure: a Vega-Lite chart of named tables of the document, without the data themselves."""

from launcher.page.document import Document
from launcher.page.figures.accuracy import accuracy
from launcher.page.figures.base import Figure
from launcher.page.figures.compared import compared
from launcher.page.figures.fairness import fairness
from launcher.page.figures.loss import loss
from launcher.page.figures.ring import rings
from launcher.page.figures.time import time
from launcher.page.figures.timeline import timeline
from launcher.page.figures.traffic import traffic


def figures(document: Document) -> list[Figure]:
    """Those of one run, or those that compare several; of what nothing is known there is none."""
    if len(document.runs) > 1:
        made = compared(document)
    else:
        made = [maker(document) for maker in (accuracy, fairness, loss, time, traffic, timeline)]
        made[3:3] = rings(document)
    return [figure for figure in made if document.tables[figure.tables[0]]]

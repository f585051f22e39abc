"""The document of a run that goes on: by what its peers have told so far, and nothing is proven of it yet."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from launcher.page.chronicle import Chronicle
from launcher.page.document import Document, PrivacyWords
from launcher.page.making import document_of
from launcher.page.told import Told
from launcher.views import Views
from peer.spec.federation import Spec

LATER = PrivacyWords(
    "open",
    "Of privacy nothing is proven while the run goes on: what each peer sent is compared at its end.",
    (),
    (),
    (),
)


@dataclass(frozen=True)
class Watched(Told):
    """decided: the views so far."""

    decided: Views

    @cached_property
    def views(self) -> Views:
        return self.decided

    @property
    def proof(self) -> None:
        return None


def document_so_far(spec: Spec, views: Views, chronicles: Mapping[str, Chronicle]) -> Document:
    """Its tables lack what stands in audits alone: the bytes along each edge."""
    nowhere = dict.fromkeys(spec.ids, Path())
    document = document_of(Watched(spec, nowhere, None, chronicles, {}, views), spec.name)
    [run] = document.runs
    goes_on = f"Goes on: {run.completed} of {views.rounds} rounds. The figures are those of the rounds so far."
    changes = [f"From round {round} on: {words}" for round, words in views.changes()]
    part = replace(run, state="unfinished", told=goes_on, privacy=LATER, notes=changes)
    return replace(document, runs=[part])

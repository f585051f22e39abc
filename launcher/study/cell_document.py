"""A cell's federation as a settings file: an error in it names the line of study.yaml from which a value came."""

from collections.abc import Mapping
from dataclasses import dataclass

from peer.spec.document import Document
from peer.spec.known_keys import Location


@dataclass(frozen=True)
class CellDocument(Document):
    """places: by where in the federation a value of the grid was put, where it stands in study.yaml."""

    places: Mapping[Location, Location]

    def where(self, location: Location) -> str:
        for put in sorted(self.places, key=len, reverse=True):
            if location[: len(put)] == put:
                return super().where((*self.places[put], *location[len(put) :]))
        return super().where(("base", *location))

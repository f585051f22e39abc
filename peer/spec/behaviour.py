"""How a peer misbehaves because the spec says so: for experiments with adversaries and free riders.

Everybody knows it, as it stands in the spec. Who lies without saying so is another matter: SECURITY.md.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from peer.settings import Settings, kind_of_word


class LabelFlip(Settings):
    """Trains on wrong labels. It is tested against the true ones, and tells the class mix of those it trains on."""

    kind: Literal["label-flip"]
    """Wrong labels."""
    rate: float = Field(default=0.5, gt=0, le=1)
    """Share of its training samples whose label is replaced by one of the other classes, each as likely."""


class Noise(Settings):
    """Adds Gaussian noise, new in each message, to what it sends."""

    kind: Literal["noise"]
    """Noise on what is sent."""
    scale: float = Field(default=1.0, gt=0, le=1e6)
    """Standard deviation, in units of the vector's values."""


class Stale(Settings):
    """Sends for ever what it sent first under each name: a free rider, whose training helps nobody."""

    kind: Literal["stale"]
    """The first vector for ever."""


class SignFlip(Settings):
    """Sends what works against the others.

    Of a part of the model, 2·w₀ − w: this round's change reversed, w₀ being the model at the start of the round. Of a
    vector of the protocol's own, an update or a gradient, its negative.
    """

    kind: Literal["sign-flip"]
    """Changes reversed."""


Behaviour = LabelFlip | Noise | Stale | SignFlip
AnyBehaviour = Annotated[
    Annotated[Behaviour, Field(discriminator="kind")],
    BeforeValidator(
        kind_of_word, json_schema_input_type=Behaviour | Literal["label-flip", "noise", "stale", "sign-flip"]
    ),
]
"""A behaviour's block; a word alone is its kind."""


def in_words(behaviours: Mapping[str, Behaviour]) -> dict[str, str]:
    """For people, by id: `label-flip, rate 0.5`."""
    return {id: ", ".join(_settings(behaviour)) for id, behaviour in behaviours.items()}


def _settings(behaviour: Behaviour) -> list[str]:
    numbers = [f"{key} {value:g}" for key, value in behaviour if key != "kind"]
    return [behaviour.kind, *numbers]

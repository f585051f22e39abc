"""Solo: local training and nothing else; what every paper compares with."""

import json
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from peer.learning.training.phase import Phase
from peer.protocols.base import Init, Peer, Protocol
from peer.protocols.declarations import Share
from peer.protocols.registry import PROTOCOLS, protocol_class
from peer.topology import Graph


class Solo(Protocol):
    """Each peer trains alone, as the compared protocol would. With one peer it is centralised training."""

    name: Literal["solo"] = "solo"
    like: str = "fibfl"
    """Whose local training: a name, or `{name: fibfl, lr: 0.02}`. The default trains 21 epochs a round."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Its hyperparameters, where not the defaults."""

    paper: ClassVar[str] = "all (baseline)"
    min_peers: ClassVar[int] = 1
    graph: ClassVar[Graph] = "none"

    @model_validator(mode="before")
    @classmethod
    def _as_block(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        like = given.get("like", cls.model_fields["like"].default)
        if isinstance(like, str) and like in PROTOCOLS:
            own = protocol_class(like).model_fields.keys() - cls.model_fields
            if theirs := {key: given[key] for key in given if key in own}:
                block = json.dumps({"name": like, **theirs})
                raise ValueError(f"`{next(iter(theirs))}` is of the protocol in `like`; write `like: {block}`")
        if not isinstance(like, dict):
            return given
        if given.get("settings") or "name" not in like:
            wrong = "`settings` beside it" if "name" in like else "no `name`"
            raise ValueError(f"`like` is a protocol's block with {wrong}; write `like: {{name: fibfl, lr: 0.02}}`, say")
        return {**given, "like": like["name"], "settings": {key: like[key] for key in like if key != "name"}}

    @field_validator("like")
    @classmethod
    def _known(cls, like: str) -> str:
        if (like not in PROTOCOLS and ":" not in like) or like == "solo":
            raise ValueError(f"names the compared protocol: {', '.join(p for p in PROTOCOLS if p != 'solo')}")
        return like

    @model_validator(mode="after")
    def _fitting(self) -> Self:
        try:
            _ = self._compared
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(step) for step in first["loc"])
            raise ValueError(f"`{key}` of {self.like}: {first['msg']}; correct `like` or its `settings`") from None
        return self

    @cached_property
    def _compared(self) -> Protocol:
        return protocol_class(self.like).model_validate_json(
            json.dumps({"name": self.like, **self.settings}), strict=True
        )

    @property
    def init(self) -> Init:  # type: ignore[override]
        """The compared protocol's start, so that the gain over training alone does not come from another start."""
        return self._compared.init

    def why_optimiser_is_fixed(self) -> str | None:
        """The compared protocol's reason, as training alone must use the same optimiser."""
        return self._compared.why_optimiser_is_fixed()

    def why_steps_are_fixed(self) -> str | None:
        """The compared protocol's reason, as training alone must take the same steps."""
        return self._compared.why_steps_are_fixed()

    def why_training_is_fixed(self) -> str | None:
        """The compared protocol's reason, as both must train alike."""
        return self._compared.why_training_is_fixed()

    def shares(self, rounds: int) -> tuple[Share, ...]:
        return ()

    def local(self) -> tuple[Phase, ...]:
        return self._kept(self._compared.local())

    def training(self, round: int) -> tuple[Phase, ...]:
        return self._kept(self._compared.training(round))

    async def round(self, peer: Peer) -> None:
        await peer.train(*self.training(peer.round))

    def _kept(self, phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
        if self.settings.get("keep_momentum") is False:
            return phases
        return tuple(replace(phase, keep=phase.keep or phase.part) for phase in phases)

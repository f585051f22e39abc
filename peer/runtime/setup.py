"""Everything a peer needs before it opens a connection: its data, its model, and a directory that is its own.

Nothing is created before all of it is known to go together.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from peer.learning.data.shard import Shard
from peer.learning.device import choose_device, prepare_device
from peer.learning.model.model import Model
from peer.protocols.base import Resources
from peer.runtime.data_and_model import SharedData, check_room, fitting_model, load_shard
from peer.runtime.lifecycle import MembershipGate
from peer.runtime.resources import whole_cores
from peer.runtime.run_directory import check_directory
from peer.spec.agreement import Agreement, user_code
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig
from peer.spec.recordings import fixed_resources, recorded_views
from peer.views.statements import Decision
from peer.views.view import View


@dataclass
class Setup:
    """What a peer brings along. In a running view only `shard` changes, when the data drift; each view gets a copy with
    its own `given_gate`."""

    config: PeerConfig
    spec: Spec
    shard: Shard
    model: Model
    pinned_resources: Callable[[int], Resources] | None = None
    """This peer's resources by round; None if they are to be measured."""
    recorded: tuple[Decision, ...] | None = None
    """The recorded views to replay, without view 0; None if views are to be decided."""
    given_gate: MembershipGate | None = None
    """The gate of the present view where members may change or views are replayed; None: the members stay the same."""
    rewound: int | None = None
    """The round to which this peer has gone back as it started; None if it has not."""
    common: SharedData | None = None
    """What all peers of this process share; None if each peer has its own process."""

    @cached_property
    def gate(self) -> MembershipGate:
        return self.given_gate or MembershipGate(View(0, self.spec.ids, first=0), self.spec.patience)

    @cached_property
    def own_code(self) -> list[str]:
        """Every `module:Name` of user code that affects what this peer sends."""
        own = user_code(self.config.model_dump(mode="json", include={"data"}))
        return list(dict.fromkeys([*self.spec.computing_code, *own]))

    @property
    def agreement(self) -> Agreement:
        """What the two ends of a link must agree on; if views are replayed, that includes the views."""
        views = {"views": [one.view.as_json() for one in self.recorded]} if self.recorded is not None else {}
        return Agreement({**self.spec.link_agreement.content, **views})

    @property
    def view(self) -> View:
        """The view that this peer takes part in."""
        return self.gate.view

    @property
    def threads(self) -> int:
        return whole_cores() if self.config.threads == "auto" else self.config.threads

    @property
    def out(self) -> Path:
        return self.config.directory

    def from_scratch(self) -> "Setup":
        """Return the same with the data and the model of the beginning; raises as `prepare`."""
        shard, model = _shard_and_model(self.config, self.spec, self.common)
        return replace(self, shard=shard, model=model)


def prepare(config: PeerConfig, spec: Spec, common: SharedData | None = None) -> Setup:
    """Load the data and build the model; InputError if they do not fit together. Creates no files."""
    check_directory(config, spec)
    resources = fixed_resources(config, spec)
    recorded = recorded_views(config, spec)
    shard, model = _shard_and_model(config, spec, common)
    return Setup(config, spec, shard, model, resources, recorded, common=common)


def _shard_and_model(config: PeerConfig, spec: Spec, common: SharedData | None) -> tuple[Shard, Model]:
    device = choose_device(config.device)
    prepare_device(device, config.gpu_memory, spec.training.deterministic)
    shard = load_shard(config, spec, 1, common)
    model = fitting_model(config, spec, shard, device, common.gradient if common else torch.zeros_like)
    check_room(config, spec, shard, model)
    return shard, model

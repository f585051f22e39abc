"""A peer's data and the model that learns from them; InputError if they do not fit together.

`SharedData` holds what the peers of one process have in common. If the spec makes a peer flip labels, that happens
here, where its data are loaded.
"""

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from peer.errors import InputError
from peer.learning.data.shard import CommonData, HoldBack, Shard, own_data_errors, own_shard
from peer.learning.data.sources import Source
from peer.learning.data.sources.image_sets import MissingError
from peer.learning.model.model import Gradient, Model
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.training.checks import check_length, try_training
from peer.learning.training.trainer import check_batches
from peer.runtime.dry_run import DRY_RUN_SAMPLES, DryRunInput, check_disk, disk_needed, dry_run_figures
from peer.runtime.rounds.adversary import flip_labels
from peer.spec.blocks import LabelFlip
from peer.spec.checks import cannot_transform, check_mix, check_model
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig


class SharedData:
    """The federation's data and a gradient buffer, shared by all peers of one process."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._gradients: dict[int, Tensor] = {}

    @cached_property
    def data(self) -> CommonData:
        """The data, read when a peer without data of its own first needs them; InputError if they cannot be used."""
        return CommonData(self._spec.data, self._spec.ids, self._spec.task)

    def gradient(self, vector: Tensor) -> Tensor:
        """The gradient buffer for such a vector: one for all peers, which train in turn and keep nothing in it."""
        size = len(vector)
        if size not in self._gradients:
            self._gradients[size] = torch.zeros_like(vector)
        return self._gradients[size]


def load_shard(config: PeerConfig, spec: Spec, round: int, common: SharedData | None = None) -> Shard:
    """This peer's data in a round; InputError if they are unusable in any round."""
    data = spec.data
    if config.data and (why := next(cannot_transform(spec.protocol, config.data), None)):
        raise InputError(why)
    hold_back = None if spec.hold_back is None else HoldBack(spec.hold_back, data.seed, config.id)
    if config.data:
        with own_data_errors(config.id):
            shard = own_shard(config.data, data, round, spec.task, hold_back)
    else:
        dealt = common.data if common else CommonData(data, spec.ids, spec.task)
        shard = dealt.shard(config.id, round, hold_back)
    match spec.behaviour.get(config.id):
        case LabelFlip(rate=rate):
            train, held = (
                some and some.changed(labels=flip_labels(some.labels, rate, shard.classes, spec.seed, config.id))
                for some in (shard.train, shard.held_back)
            )
            given = spec.hold_back == "given"  # not of its training samples
            return replace(shard, train=train or shard.train, held_back=shard.held_back if given else held)
    return shard


def local_shard(config: PeerConfig, spec: Spec) -> Shard | None:
    """The data of round 1, if they are on this machine; None if the start would download them first."""
    try:
        here = config.model_copy(update={"data": config.data and _without_download(config.data)})
        return load_shard(here, spec.model_copy(update={"data": _without_download(spec.data)}), 1)
    except MissingError as error:
        if getattr(config.data or spec.data, "download", False):
            return None
        raise InputError(str(error)) from None


def _without_download(source: Source) -> Source:
    return source.model_copy(update={"download": False}) if hasattr(source, "download") else source


def fitting_model(
    config: PeerConfig, spec: Spec, shard: Shard, device: torch.device, gradient: Gradient = torch.zeros_like
) -> Model:
    """The model that the peer begins with; InputError if it cannot learn from the data."""
    stream = config.id if spec.init == "independent" else "shared"
    example = Example.from_samples(shard.train, shard.classes, shard.task, shard.test)
    model = build(spec.model.of_peer(config.id), example, spec.seed, stream, device, gradient)
    model.names = shard.names
    check_model(spec, model)
    check_mix(spec, shard.proportions, config.id)
    spec.protocol.check_samples(config.id, len(shard.train))
    check_batches(model, spec.phases, len(shard.train), config.id)
    check_length(model, spec.protocol.local(), len(shard.train), spec.training, spec.rounds)
    try_training(model, shard.train.first(DRY_RUN_SAMPLES), spec.phases, spec.training, spec.rounds)
    return model


def check_room(config: PeerConfig, spec: Spec, shard: Shard, model: Model) -> tuple[int, int]:
    """The bytes on disk that the run needs at most, and those that are free; InputError if there is less room."""
    proportions = dict.fromkeys(spec.ids, torch.from_numpy(shard.proportions))
    few = shard.train.first(DRY_RUN_SAMPLES)
    given = DryRunInput(spec, model, few, proportions, shard.validation)
    needed = disk_needed(spec, model.sizes["model"], dry_run_figures(config.id, given))
    return needed, check_disk(config.directory, needed)

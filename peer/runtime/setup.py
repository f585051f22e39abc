"""Everything a peer needs before it opens a connection: its data, its model, and a directory that is its own.

Nothing is created before all of it is known to go together. What the peers of one process hold once for all of them is
in `SharedData`. A peer that the spec lets flip labels does so here, where its data are loaded; how else a peer may
misbehave is in `peer.runtime.communicator`.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from peer.errors import InputError
from peer.files import make_private, refuse_links, sole_use, unwritable_reason, write_atomically
from peer.learning.data.shard import CommonData, HoldBack, Shard, common_shard, own_data_errors, own_shard
from peer.learning.device import choose_device, limit_memory, memory_errors
from peer.learning.model.model import Gradient, Model
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.learning.randomness import torch_generator
from peer.learning.training.checks import check_length, try_training
from peer.learning.training.trainer import check_batches
from peer.network.wire.messages import VERSION
from peer.protocols.base import Resources
from peer.runtime.dry_run import DRY_RUN_SAMPLES, DryRunInput, check_disk, disk_needed, dry_run_figures
from peer.runtime.lifecycle import MembershipGate
from peer.spec.agreement import Agreement, differing, user_code
from peer.spec.blocks import LabelFlip
from peer.spec.checks import cannot_transform, check_learnt, check_mix, why_not_continued
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig
from peer.spec.recordings import RunIdentity, fixed_resources, recorded_views
from peer.telemetry.results import RESULT
from peer.views.statements import Decision
from peer.views.view import View


class SharedData:
    """The federation's data, and room for gradients."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._gradients: dict[int, Tensor] = {}

    @cached_property
    def data(self) -> CommonData:
        """Read when a peer without data of its own wants them; InputError when they are no use."""
        return CommonData(self._spec.data, self._spec.ids, self._spec.task)

    def gradient(self, vector: Tensor) -> Tensor:
        """One of that vector's size: the peers train one after the other, and none keeps anything there."""
        size = len(vector)
        if size not in self._gradients:
            self._gradients[size] = torch.zeros_like(vector)
        return self._gradients[size]


def forget_other(out: Path, spec: Spec) -> None:
    """Remove a result that was fine-tuned by other settings, or by none, before run.json says that it was by these."""
    try:
        theirs = RunIdentity.read(out).digests.get("finetune")
    except (OSError, ValueError):
        return
    if theirs != spec.agreement.digests.get("finetune"):
        (out / RESULT).unlink(missing_ok=True)


def flip_labels(labels: Tensor, rate: float, classes: int, seed: int, peer: str) -> Tensor:
    """Labels (n,) of which ⌊rate·n + ½⌋, drawn for this peer, are others of the classes 0 … classes−1.

    With one class there is no other, and nothing changes.
    """
    generator = torch_generator(seed, peer, 0, "label-flip")
    chosen = torch.randperm(len(labels), generator=generator)[: int(rate * len(labels) + 0.5)]
    flipped = labels.clone()
    if classes > 1:
        shift = torch.randint(1, classes, (len(chosen),), generator=generator)
        flipped[chosen] = (labels[chosen] + shift) % classes
    return flipped


@dataclass
class Setup:
    """What a peer brings along. Only `shard` is ever replaced: by that of a later round, when the data drift."""

    config: PeerConfig
    spec: Spec
    shard: Shard
    model: Model
    given: Callable[[int], Resources] | None = None
    """This peer's resources by round; None if they are to be measured."""
    recorded: tuple[Decision, ...] | None = None
    """The views of the run that is replayed, after that of all; None if they are to be decided."""
    moved: MembershipGate | None = None
    """Its place in a later view; None in the run's first one, of all members."""
    common: SharedData | None = None
    """What all peers of this process hold together; None where each is a process of its own."""

    @cached_property
    def seat(self) -> MembershipGate:
        return self.moved or MembershipGate(View(0, self.spec.ids, first=0), self.spec.patience)

    @cached_property
    def own_code(self) -> list[str]:
        """Each `module:Name` of a user's own that has a say in what this peer sends."""
        own = user_code(self.config.model_dump(mode="json", include={"data"}))
        return list(dict.fromkeys([*self.spec.computing_code, *own]))

    @property
    def agreement(self) -> Agreement:
        """What the two ends of a link must agree on: those who replay views, on all of them."""
        views = {"views": [one.view.as_json() for one in self.recorded]} if self.recorded is not None else {}
        return Agreement({**self.spec.link_agreement.content, **views})

    @property
    def view(self) -> View:
        """In which it lives."""
        return self.seat.view

    @property
    def out(self) -> Path:
        return self.config.out or Path(self.config.id)


def prepare(config: PeerConfig, spec: Spec, common: SharedData | None = None) -> Setup:
    """Load the data and build the model; InputError when they do not go together. Creates nothing."""
    device = choose_device(config.device)
    limit_memory(device, config.gpu_memory)
    out = config.out or Path(config.id)
    check_directory(out, config, spec)
    resources = fixed_resources(config, spec)
    recorded = recorded_views(config, spec)
    shard = load_shard(config, spec, 1, common)
    model = fitting_model(config, spec, shard, device, common.gradient if common else torch.zeros_like)
    check_room(config, spec, shard, model)
    return Setup(config, spec, shard, model, resources, recorded, common=common)


def fitting_model(
    config: PeerConfig, spec: Spec, shard: Shard, device: torch.device, gradient: Gradient = torch.zeros_like
) -> Model:
    """The model as the peer begins with it; InputError when it cannot learn from the data."""
    stream = config.id if spec.init == "independent" else "shared"
    example = Example.of(shard.train, shard.classes, shard.task, shard.test)
    model = build(spec.model, example, spec.seed, stream, device, gradient)
    model.names = shard.names
    check_learnt(spec, model)
    check_mix(spec, shard.proportions, config.id)
    spec.protocol.check_samples(config.id, len(shard.train))
    check_batches(model, spec.phases, len(shard.train), config.id)
    check_length(model, spec.protocol.local(), len(shard.train), spec.training, spec.rounds)
    with memory_errors():
        try_training(model, shard.train.first(DRY_RUN_SAMPLES), spec.phases, spec.training, spec.rounds)
    return model


def check_room(config: PeerConfig, spec: Spec, shard: Shard, model: Model) -> int:
    """The bytes on disk that the run needs at most; InputError when there are not as many."""
    everyone = dict.fromkeys(spec.ids, torch.from_numpy(shard.proportions))
    few = shard.train.first(DRY_RUN_SAMPLES)
    rehearsal = DryRunInput(model, few, everyone, spec.rounds, spec.seed, shard.validation, spec.wire)
    needed = disk_needed(spec, model.sizes["model"], dry_run_figures(spec, config.id, rehearsal))
    check_disk(config.out or Path(config.id), needed)
    return needed


def load_shard(config: PeerConfig, spec: Spec, round: int, common: SharedData | None = None) -> Shard:
    """The data as this peer has them in a round; InputError when they are no use in any round."""
    data = spec.data
    if config.data and (why := next(cannot_transform(spec.protocol, config.data), None)):
        raise InputError(why)
    hold_back = None if spec.hold_back is None else HoldBack(spec.hold_back, data.seed, config.id)
    if config.data:
        with own_data_errors(config.id):
            shard = own_shard(config.data, data, round, spec.task, hold_back)
    elif common:
        shard = common.data.shard(config.id, round, hold_back)
    else:
        shard = common_shard(data, spec.ids, config.id, round, spec.task, hold_back)
    match spec.behaviour.get(config.id):
        case LabelFlip(rate=rate):
            train, held = (
                some and some.changed(labels=flip_labels(some.labels, rate, shard.classes, spec.seed, config.id))
                for some in (shard.train, shard.held_back)
            )
            return replace(shard, train=train or shard.train, held_back=held)
    return shard


def check_directory(out: Path, config: PeerConfig, spec: Spec) -> None:
    """Refuse a directory that cannot be written, or that holds the files of another run."""
    if why := unwritable_reason(out):
        raise InputError(f"{why}; give another `out`")
    if out.exists():
        with sole_use(out):
            refuse_links(out)
    try:
        theirs = RunIdentity.read(out)
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        raise InputError(f"{out}/run.json: is not readable; give another `out` or remove {out}") from None
    if theirs.id != config.id:
        raise InputError(f"{out}: belongs to peer `{theirs.id}`; give another `out`")
    if theirs.version != VERSION:
        raise InputError(f"{out}: holds a run of another version of dfl; give another `out`")
    if obstacle := why_not_continued(spec, differing(spec.agreement.digests, theirs.digests), theirs.rounds):
        raise InputError(f"{out}: holds another run: {obstacle}; give another `out`")


@contextmanager
def own_directory(out: Path, config: PeerConfig, spec: Spec) -> Iterator[None]:
    """Create the directory, say in it whose it is, and keep every other process out of it inside the block."""
    make_private(out)
    with sole_use(out):
        forget_other(out, spec)
        RunIdentity.from_spec(spec, config.id, VERSION).write(out)
        write_atomically(out / "pid", f"{os.getpid()}\n".encode())
        yield

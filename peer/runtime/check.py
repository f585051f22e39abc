"""`dfl-peer --check`: checks whether a peer could start here now. It creates no files and leaves no port open."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import torch

from peer.errors import FailedError, InputError
from peer.learning.data.shard import Shard
from peer.learning.device import choose_device, device_errors, prepare_device
from peer.learning.model.model import Model
from peer.network.operator_client import StatusClient
from peer.network.transport.addresses import TCP_CHECK_TIMEOUT_S, why_taken
from peer.network.transport.tls import CertificateBundle, CertificatePaths
from peer.runtime.data_and_model import check_room, fitting_model, local_shard
from peer.runtime.run_directory import directory_in_words
from peer.spec.federation import Spec
from peer.spec.loading import read_peer
from peer.spec.peer import PeerConfig, check_plaintext, subscriber_settings
from peer.spec.recordings import fixed_resources, recorded_views
from peer.telemetry.metrics import client
from peer.telemetry.telemetry import load_tracker, writer_class


@dataclass(frozen=True)
class CheckResult:
    """One line of the output: what was checked, and that it is right, or what is wrong and what to do."""

    subject: str
    message: str
    ok: bool | None = True
    """Whether it is right; None: it cannot be checked before something else is right."""


def check(path: Path) -> Iterator[CheckResult]:
    """Check everything that a start needs, even after something was found to be wrong."""
    try:
        config, spec = read_peer(path)
    except InputError as error:
        yield CheckResult("config", str(error), False)
        yield CheckResult("all else", "not checked; correct the config first", None)
        return
    yield CheckResult("config", f"{config.id}, one of {len(spec.ids)} peers of {spec.name} ({spec.protocol.name})")
    found = PeerCheck(config, spec)
    yield from found.findings()
    yield from asyncio.run(_neighbours(config, spec, found.chain))


async def _neighbours(config: PeerConfig, spec: Spec, chain: CertificateBundle | None) -> list[CheckResult]:
    """Check the neighbours on the ring of the spec, calling all of them at once."""
    around = spec.neighbours(config.id)
    async with aclosing(StatusClient(spec.name, spec.addresses, chain, timeout_s=TCP_CHECK_TIMEOUT_S)) as peers:
        met = await asyncio.gather(*map(peers.look, around))
    return [CheckResult(f"neighbour {id}", message, ok) for id, (message, ok) in zip(around, met, strict=True)]


class PeerCheck:
    """Checks what a peer needs on this machine. Some checks use what earlier ones found: device, data, model."""

    def __init__(self, config: PeerConfig, spec: Spec) -> None:
        self.config, self.spec = config, spec
        self.device = torch.device("cpu")
        self.shard: Shard | None = None
        self.model: Model | None = None
        self.chain: CertificateBundle | None = None

    def findings(self) -> Iterator[CheckResult]:
        checks: list[tuple[str, Callable[[], str | None]]] = [
            ("device", self._device),
            ("data", self._data),
            ("model", self._model),
            ("resources", self._resources),
            ("views", self._views),
            ("directory", lambda: directory_in_words(self.config, self.spec)),
            ("disk", self._disk),
            ("certificates", self._certificates),
            ("port", lambda: self._listen and _free(self._listen, "listen")),
            ("health", lambda: self.config.health and _free(self.config.health, "health")),
            ("metrics", self._metrics),
            ("tensorboard", self._tensorboard),
            ("tracker", self._tracker),
        ]
        for subject, run in checks:
            try:
                message = run()
            except (InputError, FailedError) as error:
                yield CheckResult(subject, str(error), False)
            except SkippedCheckError as error:
                yield CheckResult(subject, str(error), None)
            else:
                if message:
                    yield CheckResult(subject, message)

    @property
    def _listen(self) -> str | None:
        return self.config.listen or self.spec.addresses[self.config.id]

    def _device(self) -> str:
        device = choose_device(self.config.device)
        try:
            with device_errors():
                prepare_device(device, self.config.gpu_memory, self.spec.training.deterministic)
                torch.zeros(1, device=device)
        except RuntimeError as error:
            raise InputError(f"device `{device}` does not work: {str(error).splitlines()[0]}") from error
        self.device = device
        if device.type != "cuda":
            return str(device)
        free, total = torch.cuda.mem_get_info(device)
        return f"{device}: {torch.cuda.get_device_name(device)}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free"

    def _data(self) -> str:
        self.shard = local_shard(self.config, self.spec)
        if self.shard is None:
            source = self.config.data or self.spec.data
            raise SkippedCheckError(f"{source.name} is not here yet; the start downloads it")
        whose = "its own" if self.shard.own else f"its part of {self.spec.data.name}"
        shape, samples = self.shard.train.shape, len(self.shard.train)
        return f"{whose}: {samples:,} samples, inputs {shape}, {self.shard.task.outputs_in_words(self.shard.classes)}"

    def _model(self) -> str:
        if self.shard is None:
            raise SkippedCheckError("not checked; this needs the data first")
        with device_errors():
            self.model = fitting_model(self.config, self.spec, self.shard, self.device)
        return ", ".join([self.spec.model.name, f"{self.model.sizes['model']:,} values", *self.model.remarks])

    def _resources(self) -> str | None:
        source = self.spec.protocol.resources_from
        fixed_resources(self.config, self.spec)
        return None if source == "measured" else f"{source}, and they are there"

    def _views(self) -> str | None:
        views = recorded_views(self.config, self.spec)
        return None if views is None else f"{len(views) + 1} of {self.spec.recording} are replayed"

    def _disk(self) -> str:
        if self.shard is None or self.model is None:
            raise SkippedCheckError("not checked; this needs data and model first")
        needed, free = check_room(self.config, self.spec, self.shard, self.model)
        return f"up to {needed / 1e6:,.0f} MB are needed, {free / 1e6:,.0f} MB are free"

    def _certificates(self) -> str:
        check_plaintext(self.config, self.spec)
        if (tls := self.config.tls) is None:
            allowed = "`plaintext` allows it" if self.spec.plaintext else "all peers are on this machine"
            return f"none: nothing is encrypted; {allowed}"
        self.chain = CertificatePaths(self.config.id, tls.ca, tls.cert, tls.key).read()
        until = f"valid until {self.chain.expires:%Y-%m-%d %H:%M} UTC"
        return f"made out to {self.config.id}, {until}, by the CA {self.chain.fingerprint}"

    def _metrics(self) -> str | None:
        if (address := subscriber_settings(self.config, self.spec).metrics) is None:
            return None
        client()
        return _free(address, "metrics")

    def _tensorboard(self) -> str | None:
        if not subscriber_settings(self.config, self.spec).tensorboard:
            return None
        writer_class()
        return "can be written"

    def _tracker(self) -> str | None:
        if (name := subscriber_settings(self.config, self.spec).tracker) is None:
            return None
        load_tracker(name)
        return f"{name} is there"


class SkippedCheckError(Exception):
    """Something cannot be checked before something else is right."""


def _free(address: str, key: str) -> str:
    if why := why_taken(address):
        raise InputError(f"cannot listen at {address}: {why}; stop what uses it or give this peer another `{key}`")
    return f"{address} is free"

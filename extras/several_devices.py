"""The gradients of one peer by several processes, each on a device of its own: for a training loop.

The loop's process alone has the optimiser, the protocol's corrections and the samples. For each batch it sends every
further process its weights and a share of the batch; torch's `DistributedDataParallel` forms the mean gradient. So a
peer that is killed needs nothing of the others, and every protocol that takes a loop trains so, too.

The processes live on from phase to phase, but what they know comes anew with each. Tensors travel between them by gloo
on the loopback interface, everything else through pipes that only the two hold. Each ends with the first.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import BytesIO
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector
from torch.utils._pytree import tree_leaves, tree_map

from peer.errors import FailedError
from peer.learning.device import device_errors, prepare_device
from peer.learning.model.layout import spread
from peer.learning.randomness import derive, draw_from
from peer.learning.training.training_loop import TrainingLoop
from peer.plugins import describe_error
from peer.process import exit_words

PATIENCE = 300.0
"""Seconds for which one process waits for another."""
LAST_WORDS = 2.0
"""Seconds in which a process that fails says why."""
Loss = Callable[[Any, Tensor], Tensor]


class BatchShare(NamedTuple):
    """What one process does of a batch."""

    inputs: Any
    targets: Tensor
    weight: float
    """Of its mean loss in the mean of all processes'."""


class Work(NamedTuple):
    """What one process needs for a phase."""

    model: nn.Module
    loss: Loss
    options: Mapping[str, Any]
    """Of `DistributedDataParallel`."""

    def gradients(self) -> Callable[[BatchShare], Tensor]:
        """Return what leaves the mean gradient in the model's parameters and gives the mean loss: called in all
        processes at once, with the parameters of the first."""
        model = DistributedDataParallel(self.model, **self.options)
        learning = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        sizes = [parameter.numel() for parameter in learning]

        def gradient(share: BatchShare) -> Tensor:
            with torch.no_grad():
                values = parameters_to_vector(learning)
                dist.broadcast(values, 0)
                for parameter, its in zip(learning, torch.split(values, sizes), strict=True):
                    parameter.grad = None
                    if dist.get_rank() > 0:
                        parameter.copy_(its.view_as(parameter))
            loss = self.loss(spread(model, share.inputs), share.targets) * share.weight
            loss.backward()  # type: ignore[no-untyped-call]
            if any(one.grad is None for one in learning) and "find_unused_parameters" not in self.options:
                raise ValueError("the loss does not depend on all parameters; give `find_unused_parameters=True`")
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            return mean

        return gradient


@contextmanager
def shared_gradient(
    loop: TrainingLoop, processes: int, loss: Loss | None = None, **options: Any
) -> Iterator[Callable[[Any, Tensor], Tensor]]:
    """Yield what takes the place of zero_grad, forward and backward pass: `gradient(inputs, targets)` leaves the
    batch's mean gradient in `loop.model`, and returns its mean loss.

    processes: so many, this one included; on GPUs on the next one each. loss: a module's function of outputs and
    targets, or else `loop.loss`. options: of `DistributedDataParallel`.
    What another process raises comes out as a RuntimeError; FailedError if one has ended otherwise.
    """
    if processes < 2:
        raise ValueError(f"several processes are two at least, and not {processes}")
    team = _team(loop, processes)
    with team.explaining():
        work = Work(loop.model, loss or loop.loss, options)
        team.send([(work, derive(loop.seed, rank)) for rank in range(1, processes)])
        gradient = work.gradients()

        def shared(inputs: Any, targets: Tensor) -> Tensor:
            first, *others = _shares(inputs, targets, processes)
            team.send(others)
            return gradient(first)

        yield shared
        team.send([None] * (processes - 1))


def _shares(inputs: Any, targets: Tensor, count: int) -> list[BatchShare]:
    """One for each process; all of a batch that is too small to give each two samples, as BatchNorm may need."""
    size = len(targets)
    if any(len(one) != size for one in tree_leaves(inputs)):
        raise ValueError(f"a batch has {size} targets and another number of inputs; so it cannot be shared")
    if size < 2 * count:
        return [BatchShare(inputs, targets, 1.0)] * count
    cuts = [size * number // count for number in range(count + 1)]
    parts = [slice(*ends) for ends in pairwise(cuts)]
    weights = [(part.stop - part.start) * count / size for part in parts]
    inputs_of = [tree_map(lambda one, part=part: one[part], inputs) for part in parts]
    return [BatchShare(*one) for one in zip(inputs_of, (targets[part] for part in parts), weights, strict=True)]


class Team:
    """The further processes of this one, and the process group that joins them."""

    def __init__(self, first: torch.device, processes: int) -> None:
        """Start them. RuntimeError or FailedError if one cannot begin."""
        self.first, self.size, self._users = first, processes, set[int]()
        self._others = list[tuple[torch.device, subprocess.Popen[bytes], Connection]]()
        with self.explaining(), TemporaryDirectory(prefix="dfl-") as directory:
            for rank in range(1, processes):
                self._start(rank, Path(directory, "store"))
            for _, _, connection in self._others:
                if connection.poll(PATIENCE):
                    connection.recv_bytes()
            _join(Path(directory, "store"), 0, processes)

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """End all if the block fails; in place of what only follows from it, raise what one of them has said."""
        try:
            yield
        except (RuntimeError, OSError, EOFError) as error:
            if why := self.end_and_ask(error):
                raise why from error
            raise
        except BaseException:
            self.end()
            raise

    def _start(self, rank: int, store: Path) -> None:
        gpus = torch.cuda.device_count() if self.first.type == "cuda" else 1
        index = None if self.first.index is None else (self.first.index + rank) % gpus
        device = torch.device(self.first.type, index)
        ours, theirs = Pipe()
        command = [sys.executable, "-P", "-m", "extras.several_devices", str(theirs.fileno()), str(store), str(rank)]
        command += [str(self.size), str(device), str(torch.get_num_threads())]
        command += ["deterministic"] if torch.are_deterministic_algorithms_enabled() else []
        # Where this process has its modules from, the other one has them from too.
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()], env=os.environ | path)
        theirs.close()
        self._others.append((device, process, ours))

    @property
    def alive(self) -> bool:
        return bool(self._others) and all(process.poll() is None for _, process, _ in self._others)

    def send(self, messages: list[Any]) -> None:
        """Send each process its own."""
        for (_, _, connection), message in zip(self._others, messages, strict=True):
            connection.send_bytes(_packed(message))

    def end_and_ask(self, error: Exception) -> Exception | None:
        """End all; return why `error` was raised here: what the first of them to fail has said, or how it was ended.

        None if all were well.
        """
        said, without = list[tuple[float, Exception]](), list[Exception]()
        ready = wait([connection for _, _, connection in self._others], LAST_WORDS)
        for device, process, connection in self._others:
            if connection in ready:
                what = f"a further process of this peer (on {device})"
                try:
                    moment, words = connection.recv()
                    said.append((moment, RuntimeError(f"{what} failed: {words}")))
                except (EOFError, OSError):
                    how = exit_words(process.wait())
                    without.append(FailedError(f"{what} {how}; see the peer's log, and whether memory was left"))
        self.end()
        if "Timed out waiting" in str(error):
            without.append(FailedError(f"a further process of this peer gave no answer for {PATIENCE:g} s"))
        return min(said, key=lambda one: one[0])[1] if said else next(iter(without), None)

    def serve(self, model: nn.Module) -> None:
        """Live on at least as long as this model: of peers in one process several may use it."""
        if id(model) not in self._users:
            self._users.add(id(model))
            weakref.finalize(model, self._leave, id(model))

    def _leave(self, model: int) -> None:
        self._users.discard(model)
        if not self._users:
            self.end()

    def end(self) -> None:
        """End all that still run."""
        if self._others and dist.is_initialized():
            dist.destroy_process_group()
        for _, process, connection in self._others:
            connection.close()
            process.kill()
            process.communicate()
        self._others.clear()


_teams = list[Team]()
"""The one of this process, if it has one."""


def _team(loop: TrainingLoop, processes: int) -> Team:
    """The one that runs, if it fits; else a new one. It lives as long as the models that it serves."""
    if not (_teams and _teams[0].alive and (_teams[0].first, _teams[0].size) == (loop.device, processes)):
        for team in _teams:
            team.end()
        _teams[:] = [Team(loop.device, processes)]
    _teams[0].serve(loop.model)
    return _teams[0]


def _join(store: Path, rank: int, processes: int) -> None:
    """Join the process group, and wait until all have."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", socket.if_indextoname(1))  # the loopback interface
    timeout = timedelta(seconds=PATIENCE)
    files = dist.FileStore(str(store), processes)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=files, rank=rank, world_size=processes, timeout=timeout)
    dist.barrier()


def _packed(message: Any) -> memoryview:
    packed = BytesIO()
    torch.save(tree_map(lambda one: one.clone() if isinstance(one, Tensor) else one, message), packed)
    return packed.getbuffer()


def main() -> None:
    """A further process: FD STORE RANK PROCESSES DEVICE THREADS [deterministic]."""
    # A terminal and some schedulers signal all processes of a peer: it is the peer that decides when to end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_peer, daemon=True).start()
    descriptor, store, rank, processes, name, threads, *deterministic = sys.argv[1:]
    connection, device = Connection(int(descriptor)), torch.device(name)
    torch.set_num_threads(int(threads))
    try:
        with device_errors():
            prepare_device(device, None, bool(deterministic))
            connection.send_bytes(b"ready")
            _join(Path(store), int(rank), int(processes))
            while True:
                _phase(connection, device)
    except Exception as error:
        with suppress(OSError):  # if the peer has ended
            connection.send((time.monotonic(), describe_error(error)))
        raise SystemExit(1) from error


def _end_with_peer() -> None:
    """End this process when the peer has ended, whatever it does by then: the pipe at its stdin closes."""
    os.read(0, 1)
    os._exit(1)


def _phase(connection: Connection, device: torch.device) -> None:
    """Work through one phase's shares."""

    def received() -> Any:
        return torch.load(BytesIO(connection.recv_bytes()), map_location=device, weights_only=False)

    work, seed = received()
    draw_from(seed)
    torch.manual_seed(seed)
    gradient = work.gradients()
    while (share := received()) is not None:
        gradient(share)


if __name__ == "__main__":
    main()

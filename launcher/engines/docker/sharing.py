"""What a container sees of this machine: the run's directory as far as it concerns its peer, and the data it needs.

In a container the run's directory is /dfl. Data lie where they lie on this machine, so that the spec need not change.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.certificate_files import certificate_files
from launcher.engines.base import Run
from peer.learning.data.sources import Source
from peer.spec.federation import Spec

PLACE = Path("/dfl")


@dataclass(frozen=True)
class Shared:
    """A file or directory of this machine and where a container has it; without a source, nothing is seen there."""

    target: Path
    source: Path | None = None
    writable: bool = False


def shared(run: Run, id: str) -> list[Shared]:
    """All that the peer's container may see of this machine."""
    files = run.files
    found = [Shared(PLACE / file.name, file) for file in (files.federation, files.config(id))]
    found.append(Shared(PLACE / id, files.out(id), writable=True))
    if run.certs:
        certificates = certificate_files(run.certs, id)
        found += [Shared(PLACE / name, certificates[what]) for what, name in certificate_names(id).items()]
    read = [path for source in sources(run.spec, id) for path in data_files(source, id).values()]
    read += [*code_files(run.spec), *recorded_files(run.spec, id), *weight_files(run.spec)]
    found += [Shared(path, path) for path in dict.fromkeys(read)]
    private = [files.path, *([run.certs] if run.certs else [])]
    return found + [Shared(path) for path in dict.fromkeys(hidden(private, read))]


def hidden(private: Collection[Path], seen: Collection[Path]) -> Iterator[Path]:
    """Where a container would have the private directories, for they lie in what it sees, by whatever links."""
    for above in seen:
        for path in private:
            if path.resolve().is_relative_to(above.resolve()):
                yield above / path.resolve().relative_to(above.resolve())


def certificate_names(id: str) -> dict[str, str]:
    """What a peer's `tls` names, as files beside its config."""
    return {"ca": "ca.pem", "cert": f"{id}.pem", "key": f"{id}.key"}


def data_files(source: Source, id: str) -> dict[str, Path]:
    """The files and directories that are there of those that the peer's data name, by key."""
    if source.name == "digits":  # they come with the package
        return {}
    return {key: path for key, path in source.of_peer(id) if isinstance(path, Path) and path.exists()}


def sources(spec: Spec, id: str) -> list[Source]:
    """The federation's data, and those of the peer's own."""
    own = next(member.data for member in spec.ring if member.id == id)
    return [spec.data, *([own] if own else [])]


def code_files(spec: Spec) -> Iterator[Path]:
    """The modules and packages that lie where a user's own code does; other files there may be anybody's secrets."""
    if spec.code and spec.own_code:
        yield from sorted(spec.code.glob("*.py"))
        yield from sorted(package.parent for package in spec.code.glob("*/__init__.py"))


def weight_files(spec: Spec) -> Iterator[Path]:
    """The weights that the model begins with, where the spec names some that are there."""
    if spec.model.weights and spec.model.weights.exists():
        yield spec.model.weights


def recorded_files(spec: Spec, id: str) -> Iterator[Path]:
    """What the peer itself wrote in an earlier run, where the spec names one."""
    if spec.recording and (events := spec.recording / id / "events.jsonl").exists():
        yield events

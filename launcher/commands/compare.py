"""What collaborating gained: a run beside one of the same peers alone (MCG and CGS: CYCle's)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray
from pydantic import ValidationError
from rich.console import Console
from safetensors import SafetensorError

from launcher.accuracy import headline
from launcher.formatting import share
from launcher.reports import summary_json
from launcher.written_spec import WrittenSpec
from peer.errors import InputError
from peer.learning.training import metrics
from peer.learning.training.phase import Phase
from peer.protocols.registry import PROTOCOLS, protocol_class
from peer.reading import open_plain
from peer.text import printable

COMPARED = ("data", "model", "training", "seed", "init", "ring", "rounds")
"""Keys in which the two runs must be alike."""


def compare(run: Path, alone: Path, as_json: bool, console: Console) -> None:
    """Print what the run in `run` gained over the one in `alone`; InputError if they do not go together."""
    ours, theirs = _spec(run), _spec(alone)
    if theirs.keys.protocol.name != "solo":
        raise InputError(f"{alone} is a run of `{theirs.keys.protocol.name}`; give one of `solo` in second place")
    training, training_alone = _training(run, ours), _training(alone, theirs)
    differing = [key for key in COMPARED if key in ours.differing(theirs)]
    differing += ["local training (`like`)"] if training and training != training_alone else []
    if differing:
        raise InputError(f"{run} and {alone} differ in {', '.join(differing)}; run `solo` with those of {run}")
    test = ours.keys.test
    together, solo = _accuracies(run, ours, test), _accuracies(alone, theirs, test)
    gains = gained(together, solo) | {"weight_divergence": _weight_divergence(run, ours.ids)}
    if training is None:
        gains["not_compared"] = f"local training (`like`): {ours.keys.protocol.name} is code of your own"
    if as_json:
        console.print_json(json.dumps({"test": test} | gains), ensure_ascii=True)
        return
    for line in lines(gains, test):
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def gained(together: Mapping[str, float], solo: Mapping[str, float]) -> dict[str, Any]:
    """The figures of accuracies in 0..1 by id; None where one is undefined."""
    ours, theirs = list(together.values()), [solo[id] for id in together]
    return {
        "mcg": metrics.mcg(ours, theirs),
        "cgs": metrics.cgs(ours, theirs),
        "pearson": metrics.pearson(ours, theirs),
        "gain": {id: together[id] - solo[id] for id in together},
    }


def lines(gains: Mapping[str, Any], test: str) -> list[str]:
    """For a person, a line each."""
    said = [f"{id}: {gain:+.4f}" for id, gain in gains["gain"].items()]
    pearson, divergence = (
        "undefined" if gains[name] is None else f"{gains[name]:{form}}"
        for name, form in (("pearson", "+.4f"), ("weight_divergence", ".3g"))
    )
    unknown = [f"not compared, {gains['not_compared']}, which is not imported here"] if "not_compared" in gains else []
    return [
        *unknown,
        f"gain over training alone ({test}), by peer: {', '.join(said)}",
        f"mean collaboration gain (MCG): {gains['mcg']:+.4f}",
        f"its spread (CGS): {share(gains['cgs'])}",
        f"Pearson's correlation of the two accuracies: {pearson}",
        f"weight divergence between the peers' models, mean over the weights: {divergence}",
    ]


def _spec(directory: Path) -> WrittenSpec:
    file = directory / "federation.yaml"
    if not file.is_file():
        raise InputError(f"{directory} holds no run: there is no federation.yaml in it")
    return WrittenSpec.read(file)


def _training(directory: Path, spec: WrittenSpec) -> tuple[Phase, ...] | None:
    """One round's training; None where code of somebody's own says it: that is not imported for a look at a run."""
    written = spec.keys.protocol
    if written.name not in PROTOCOLS:
        return None
    try:
        return protocol_class(written.name).model_validate_json(written.model_dump_json(), strict=True).local()
    except ValidationError:
        raise InputError(f"{directory}/federation.yaml: `protocol` is not as dfl-launch writes it") from None


def _accuracies(directory: Path, spec: WrittenSpec, test: str) -> dict[str, float]:
    summary = summary_json.read(directory / "summary.json")
    if summary is None or summary.rounds != spec.keys.rounds or tuple(one.id for one in summary.per_peer) != spec.ids:
        raise InputError(f"{directory} holds no finished run: there is no whole summary.json in it")
    found = {peer.id: headline(peer.accuracy, test) for peer in summary.per_peer}
    if missing := [id for id, accuracy in found.items() if accuracy is None]:
        raise InputError(f"{directory}: {', '.join(missing)} have no accuracy on the `{test}` test")
    return {id: accuracy for id, accuracy in found.items() if accuracy is not None}


def _weight_divergence(run: Path, ids: Sequence[str]) -> float | None:
    """The mean over all weights of Eq. 11 of FedISP; None for one peer, or where models differ in shape."""
    vectors = [_weights(run / id / "model.safetensors") for id in ids]
    if len({len(vector) for vector in vectors}) > 1 or len(vectors) < 2 or not len(vectors[0]):
        return None
    return float(metrics.weight_divergence(vectors).mean())


def _weights(path: Path) -> NDArray[np.floating[Any]]:
    """Every floating-point number of a model, parameters and buffers, in the order of their names."""
    try:
        open_plain(path).close()
        with safetensors.safe_open(path, "np") as file:  # its header first: a file may claim any size
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    # KeyError: a type of which numpy has none
    except (OSError, SafetensorError, KeyError) as error:
        raise InputError(f"{path} cannot be read ({error})") from None
    floats = [tensors[name].ravel() for name in sorted(tensors) if tensors[name].dtype.kind == "f"]
    return np.concatenate([np.empty(0, np.float32), *floats])

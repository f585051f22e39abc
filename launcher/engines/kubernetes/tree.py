"""The directory of manifests: a kustomize base, two components, and overlays that put them together."""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from launcher.engines.kubernetes import objects
from launcher.engines.kubernetes.place import Place
from peer.spec.document import dump_yaml
from peer.spec.federation import Spec

KUSTOMIZATION, COMPONENT = "kustomize.config.k8s.io/v1beta1", "kustomize.config.k8s.io/v1alpha1"
CERTIFICATES = PurePosixPath("components/certificates/certs")
"""Where the certificates lie; kustomize reads no file outside of the directories that it is given."""
OVERLAYS = {"certificates": ("certificates",), "gpu": ("gpu",), "certificates-gpu": ("certificates", "gpu")}
ABOUT = "# Made by `dfl-launch manifests`: change the federation and make it again, or patch it in an overlay.\n"
IGNORED = "# Keys stay out of the repository.\n*\n!.gitignore\n"


def tree(spec: Spec, image: str) -> dict[str, str]:
    """Every file by its path; all of it may be committed."""
    return {path: text if path.endswith(".gitignore") else ABOUT + text for path, text in _files(spec, image)}


def _files(spec: Spec, image: str) -> Iterator[tuple[str, str]]:
    place = Place(spec)
    name = place.name
    yield from _base(place, image)
    yield from _component(name, "gpu", objects.gpu_patch(name))
    yield from _certificates(Place(spec, certificates=True))
    for overlay, components in OVERLAYS.items():
        content = {"resources": ["../../base"], "components": [f"../../components/{one}" for one in components]}
        yield f"overlays/{overlay}/kustomization.yaml", _kustomization(content)
    yield "collect.yaml", dump_yaml(objects.collector(name, image))


def _base(place: Place, image: str) -> Iterator[tuple[str, str]]:
    name = place.name
    made = {
        "service": objects.service(name),
        "claim": objects.claim(name),
        "job": objects.job(place, image),
        "disruption-budget": objects.disruption_budget(name, len(place.spec.ids)),
        "network-policy": objects.network_policy(name),
    }
    for file, content in made.items():
        yield f"base/{file}.yaml", dump_yaml(content)
    yield from _config("base", place)
    generator = _generator(name, place)
    content = {"resources": [f"{file}.yaml" for file in made], "configMapGenerator": [generator]}
    yield "base/kustomization.yaml", _kustomization(content)


def _component(name: str, component: str, patch: Mapping[str, Any], **more: Any) -> Iterator[tuple[str, str]]:
    directory = f"components/{component}"
    yield f"{directory}/job.yaml", dump_yaml(patch)
    content = {"apiVersion": COMPONENT, "kind": "Component", "patches": [{"path": "job.yaml"}], **more}
    yield f"{directory}/kustomization.yaml", dump_yaml(content)


def _certificates(place: Place) -> Iterator[tuple[str, str]]:
    name, ids = place.name, place.spec.ids
    names = ["ca.pem", *(f"{id}.{end}" for id in ids for end in ("pem", "key"))]
    secret = {"name": f"{name}-certificates", "files": [f"certs/{one}" for one in names]}
    config = _generator(name, place) | {"behavior": "replace"}
    generators = {"configMapGenerator": [config], "secretGenerator": [secret]}
    yield from _component(name, "certificates", objects.certificates_patch(name, ids), **generators)
    yield from _config("components/certificates", place)
    yield f"{CERTIFICATES}/.gitignore", IGNORED


def _config(directory: str, place: Place) -> Iterator[tuple[str, str]]:
    for file, text in place.files().items():
        yield f"{directory}/config/{file}", text


def _generator(name: str, place: Place) -> dict[str, Any]:
    return {"name": name, "files": [f"config/{file}" for file in place.files()]}


def _kustomization(content: Mapping[str, Any]) -> str:
    return dump_yaml({"apiVersion": KUSTOMIZATION, "kind": "Kustomization", **content})

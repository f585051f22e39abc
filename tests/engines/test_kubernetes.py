"""What a cluster would be given, by `dfl-launch manifests` and `--on kubernetes`: judged by the schemas of Kubernetes,
kustomize and the peers' own loader.
"""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from launcher.certificates import make_certificates
from launcher.cli import main
from launcher.engines.base import Run
from launcher.engines.kubernetes_objects import (
    CONFIG,
    POD_INDEX,
    TLS,
    ClusterLayout,
    KubernetesSettings,
    RunObjects,
    connects_outside,
    job,
    labels,
    network_policies,
)
from launcher.run_files import RunFiles
from peer.errors import InputError
from peer.spec.loading import load_peer, load_spec

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.yaml"
OVERLAYS = ("base", "overlays/certificates", "overlays/gpu", "overlays/certificates-gpu")
PRIVATE = "PRIVATE KEY"
OLDEST = "1.29"
"""The first Kubernetes in which all that is used is switched on."""
COMPONENTS = 21
"""The first minor version of kubectl 1.x with kustomize components."""

Object = dict[str, Any]
Rendered = dict[str, list[Object]]


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    make_certificates(load_spec(DEMO), directory, 2)
    return directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, certs: Path) -> Path:
    out = tmp_path_factory.mktemp("manifests")
    assert main(["manifests", str(DEMO), "--out", str(out), "--certs", str(certs)]) == 0
    return out


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("plain")
    assert main(["manifests", str(DEMO), "--out", str(out), "--set", "plaintext=true"]) == 0
    return out


@pytest.fixture(scope="module")
def rendered(made: Path, plain: Path) -> Rendered:
    """The objects of each overlay, as `kubectl apply -k` would send them."""
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed")
    told = subprocess.run(["kubectl", "version", "--client", "--output=json"], capture_output=True, check=True).stdout
    if int(json.loads(told)["clientVersion"]["minor"].rstrip("+")) < COMPONENTS:
        pytest.skip(f"kustomize has components since kubectl 1.{COMPONENTS}; this one is older")
    found = {}
    for overlay in OVERLAYS:
        command = ["kubectl", "kustomize", str((made if "certificates" in overlay else plain) / overlay)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr
        found[overlay] = list(YAML(typ="safe", pure=True).load_all(done.stdout))
    return found


def layout(tmp_path: Path, peers: int = 5, **keys: Any) -> ClusterLayout:
    path = tmp_path / "federation.yaml"
    path.write_text(json.dumps({"plaintext": True, **keys}))
    return ClusterLayout(load_spec(path, peers=peers))


def of_kind(objects: list[Object], kind: str) -> Object:
    (found,) = [one for one in objects if one["kind"] == kind]
    return found


def pod(objects: list[Object]) -> Object:
    found: Object = of_kind(objects, "Job")["spec"]["template"]["spec"]
    return found


def test_plaintext_is_the_spec_s_own_decision(made: Path) -> None:
    """Without certificates, peers of a spec that does not allow it would refuse to start."""
    for place in ("base", "components/certificates"):
        assert not load_spec(made / place / "config" / "federation.yaml").plaintext
    with pytest.raises(InputError, match="has no `tls`"):
        load_peer(made / "base" / "config" / "0.yaml")


def contents(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_is_as_the_schema_has_it(rendered: Rendered, overlay: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed").validate
    for one in rendered[overlay]:
        validate(one, OLDEST, strict=True)


def test_the_pod_for_the_results_is_as_the_schema_has_it(made: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed").validate
    validate(YAML(typ="safe", pure=True).load((made / "collect.yaml").read_text()), OLDEST, strict=True)


@pytest.fixture
def ordered(certs: Path, tmp_path: Path) -> Callable[..., RunObjects]:
    """What `--on kubernetes` with these settings asks of the cluster; a run of its own each time."""
    marks = iter(("0badcafe", "12345678"))

    def made(**settings: Any) -> RunObjects:
        spec = load_spec(DEMO)
        run = Run(spec, RunFiles(tmp_path), certs=certs)
        return RunObjects(
            run, ClusterLayout(spec, certificates=True, mark=next(marks)), KubernetesSettings(image="dfl", **settings)
        )

    return made


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gpus": 2, "cpus": 0.5, "memory": "4Gi", "data": "shared", "storage_class": "fast", "access": "ReadWriteOnce"},
    ],
)
def test_what_a_run_asks_for_is_as_the_schema_has_it(
    ordered: Callable[..., RunObjects], settings: dict[str, Any]
) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed").validate
    order = ordered(**settings)
    for one in (*order.beside(), order.job, order.collector()):
        validate(one, OLDEST, strict=True)


def test_two_runs_of_a_federation_do_not_meet(ordered: Callable[..., RunObjects]) -> None:
    one, other = ordered(), ordered()
    names = [
        {made["metadata"]["name"] for made in (*order.beside(), order.job, order.collector())} for order in (one, other)
    ]
    assert not names[0] & names[1]
    assert "demo-0badcafe-0.demo-0badcafe:7700" in one.place.files()["federation.yaml"]
    pods, service = one.job["spec"]["template"], of_kind(one.beside(), "Service")
    assert pods["spec"]["subdomain"] == service["metadata"]["name"] == "demo-0badcafe"
    assert service["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
    assert not service["spec"]["selector"].items() <= one.collector()["metadata"]["labels"].items()


def test_pods_of_one_run_are_spread_over_nodes_where_they_can_be(ordered: Callable[..., RunObjects]) -> None:
    template = ordered().job["spec"]["template"]
    (apart,) = template["spec"]["topologySpreadConstraints"]
    assert (apart["topologyKey"], apart["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert apart["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def policies(place: ClusterLayout, outside: bool = False) -> list[Object]:
    return [one["spec"] for one in network_policies(place, "any" if outside else "peers")]


def test_a_pod_reaches_its_neighbours_and_names_and_nothing_else(tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed").validate
    fixed = layout(tmp_path, protocol="rdfl", peers=5)
    for number, one in enumerate(network_policies(fixed, "peers")):
        validate(one, OLDEST, strict=True)
        spec = one["spec"]
        assert spec["podSelector"]["matchLabels"][POD_INDEX] == str(number)
        (near,) = spec["ingress"][0]["from"]
        (there,), names = spec["egress"][0]["to"], spec["egress"][1]
        assert near == there
        (numbers,) = near["podSelector"]["matchExpressions"]
        assert {*map(int, numbers["values"])} == {(number - 1) % 5, (number + 1) % 5}
        assert "to" not in names
        assert {port["port"] for port in names["ports"]} == {53, 5353}
        assert spec["policyTypes"] == ["Ingress", "Egress"]


@pytest.mark.parametrize("changing", [{"protocol": "fibfl++"}, {"protocol": "rdfl", "on_loss": "bypass"}])
def test_where_neighbours_may_change_all_peers_reach_each_other(tmp_path: Path, changing: dict[str, Any]) -> None:
    place = layout(tmp_path, peers=5, **changing)
    (spec,) = policies(place)
    assert spec["podSelector"] == {"matchLabels": labels(place.name)}
    assert spec["egress"][0]["to"] == spec["ingress"][0]["from"] == [{"podSelector": spec["podSelector"]}]


def test_peers_that_need_more_than_each_other_may_connect_to_it(tmp_path: Path) -> None:
    for settings, egress, outside in (
        ({}, None, False),
        ({"tracker": "csv:writer"}, None, True),
        ({"data": {"name": "mnist", "download": True}}, None, True),
        ({"data": {"name": "mnist", "download": True}}, "peers", False),
        ({}, "any", True),
    ):
        place = layout(tmp_path, protocol="fibfl++", peers=3, **settings)
        assert connects_outside(place.spec, egress) == outside
    assert policies(place, outside=True)[0]["egress"] == [{}]


def test_own_code_is_told_of_and_may_fetch_from_anywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "federation.yaml").write_text("protocol: fedavg\ndata: {name: 'fetching:data'}\n")
    (tmp_path / "fetching.py").write_text("def data(): ...\n")
    argv = [
        "manifests",
        str(tmp_path / "federation.yaml"),
        "--peers",
        "3",
        "--set",
        "plaintext=true",
        "--egress",
        "any",
    ]
    assert main([*argv, "--out", str(tmp_path / "k8s")]) == 0
    assert "Note: the image needs your own code in /code, for fetching:data\n" in capsys.readouterr().out
    policy = YAML(typ="safe").load(tmp_path / "k8s" / "base" / "network-policy.yaml")
    assert policy["spec"]["egress"] == [{}]


def test_figures_are_read_by_prometheus_and_nobody_else(tmp_path: Path) -> None:
    place = layout(tmp_path, protocol="fibfl++", peers=3, metrics=9100)
    assert "metrics" not in place.files()["federation.yaml"]
    assert "metrics: 0.0.0.0:9400" in place.files()["2.yaml"]
    (spec,) = policies(place)
    (reader,) = spec["ingress"][1]["from"]
    assert reader["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}
    template = job(place, KubernetesSettings(image="dfl"))["spec"]["template"]
    assert {"name": "metrics", "containerPort": 9400} in template["spec"]["containers"][0]["ports"]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == "9400"
    assert len(policies(layout(tmp_path, protocol="fibfl++", peers=3))[0]["ingress"]) == 1


def test_what_is_chosen_is_asked_for(ordered: Callable[..., RunObjects]) -> None:
    order = ordered(gpus=2, cpus=0.5, memory="4Gi", data="shared", storage="1Ti", storage_class="fast")
    spec, claim = order.job["spec"]["template"]["spec"], of_kind(order.beside(), "PersistentVolumeClaim")["spec"]
    (container,) = spec["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "0.5", "memory": "4Gi", "ephemeral-storage": "128Mi"},
        "limits": {"memory": "4Gi", "nvidia.com/gpu": 2},
    }
    assert {"name": "data", "mountPath": "/data", "readOnly": True} in container["volumeMounts"]
    assert claim["resources"] == {"requests": {"storage": "1Ti"}}
    assert claim["storageClassName"] == "fast"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_needs_no_rights(rendered: Rendered, overlay: str) -> None:
    """The rules of the Pod Security Standard `restricted`, from its text."""
    spec = pod(rendered[overlay])
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] != 0
    assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    (container,) = spec["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim", "secret", "projected", "ephemeral"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_pod_finds_its_settings_under_its_number(
    rendered: Rendered, overlay: str, tmp_path: Path, certs: Path
) -> None:
    """What the ConfigMap holds is laid out as in a pod, and read by the peer's own loader."""
    spec = pod(rendered[overlay])
    (container,) = spec["containers"]
    (argument,) = container["args"]
    for name, text in of_kind(rendered[overlay], "ConfigMap")["data"].items():
        (tmp_path / name).write_text(text)
    job, service = of_kind(rendered[overlay], "Job"), of_kind(rendered[overlay], "Service")
    ids = load_spec(DEMO).ids
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == len(ids)
    assert job["spec"]["completionMode"] == "Indexed"
    for index, id in enumerate(ids):
        path = argument.replace("$(DFL_INDEX)", str(index)).replace(str(CONFIG), str(tmp_path))
        config, federation = load_peer(Path(path))
        assert config.id == id
        assert (config.tls is not None) == ("certificates" in overlay)
        # An Indexed Job calls its pods by name and number; the service of that subdomain makes it a name in DNS.
        assert federation.ring[index].address == f"{job['metadata']['name']}-{index}.{spec['subdomain']}:7700"
        assert config.health == f"0.0.0.0:{container['livenessProbe']['grpc']['port']}"
    assert service["metadata"]["name"] == spec["subdomain"]
    assert service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    assert federation.plaintext == ("certificates" not in overlay)


def test_a_container_sees_its_own_key_only(rendered: Rendered) -> None:
    objects = rendered["overlays/certificates"]
    spec, secret = pod(objects), of_kind(objects, "Secret")
    (volume,) = [volume for volume in spec["volumes"] if "secret" in volume]
    (mount,) = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == volume["name"]]
    assert mount["mountPath"] == str(TLS)
    items = {item["path"]: item["key"] for item in volume["secret"]["items"]}
    assert set(items.values()) == secret["data"].keys()
    for index, id in enumerate(load_spec(DEMO).ids):
        own = mount["subPathExpr"].replace("$(DFL_INDEX)", str(index))
        seen = {path: key for path, key in items.items() if path.startswith(f"{own}/")}
        assert seen == {f"{own}/ca.pem": "ca.pem", f"{own}/cert.pem": f"{id}.pem", f"{own}/key.pem": f"{id}.key"}


def test_keys_are_kept_out_of_what_may_be_committed(made: Path) -> None:
    git = shutil.which("git")
    if not git:
        pytest.skip("git is not installed")
    subprocess.run([git, "init", "--quiet", str(made)], check=True)
    listed = [git, "-C", str(made), "ls-files", "--others", "--exclude-standard"]
    files = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    shutil.rmtree(made / ".git")
    assert "base/job.yaml" in files
    assert not [file for file in files if PRIVATE in (made / file).read_text()]
    keys = [path for path in made.rglob("*") if path.is_file() and PRIVATE in path.read_text()]
    assert keys
    assert all(key.stat().st_mode & 0o077 == 0 for key in keys)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_wrong_input_ends_the_job_and_an_eviction_counts_for_nothing(rendered: Rendered, overlay: str) -> None:
    job = of_kind(rendered[overlay], "Job")["spec"]
    wrong, evicted = job["podFailurePolicy"]["rules"]
    assert wrong["action"] == "FailJob"
    assert wrong["onExitCodes"]["values"] == [2]
    assert evicted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # or the policy is refused
    assert job["backoffLimitPerIndex"] > 0


def test_with_bypass_one_peer_s_failure_is_its_own(tmp_path: Path) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed").validate
    made = job(layout(tmp_path, protocol="rdfl", on_loss="bypass"), KubernetesSettings(image="dfl"))
    validate(made, OLDEST, strict=True)
    assert made["spec"]["podFailurePolicy"]["rules"][0]["action"] == "FailIndex"
    assert "maxFailedIndexes" not in made["spec"]  # which is without limit


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_gpus_are_asked_for_where_the_overlay_says_so(rendered: Rendered, overlay: str) -> None:
    limits = pod(rendered[overlay])["containers"][0]["resources"]["limits"]
    assert ("nvidia.com/gpu" in limits) == ("gpu" in overlay)


def test_other_peers_and_names(tmp_path: Path) -> None:
    spec = tmp_path / "My_Study.yaml"
    spec.write_text("protocol: fibfl\nplaintext: true\n")
    out = tmp_path / "out"
    assert main(["manifests", str(spec), "--peers", "5", "--image", "registry/dfl:7", "--out", str(out)]) == 0
    assert main(["manifests", str(spec), "--peers", "3", "--image", "registry/dfl:7", "--out", str(out)]) == 0
    job = YAML(typ="safe", pure=True).load((out / "base" / "job.yaml").read_text())
    assert job["metadata"]["name"] == "my-study"
    assert job["spec"]["completions"] == 3
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == "registry/dfl:7"
    assert sorted(path.name for path in (out / "base" / "config").iterdir()) == [
        *("0.yaml", "1.yaml", "2.yaml", "federation.yaml")
    ]


def add(out: Path) -> Path:
    """Manifests of the demo."""
    assert main(["manifests", str(DEMO), "--set", "plaintext=true", "--out", str(out)]) == 0
    return out


def theirs(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("kind: Kustomization\n")


@pytest.mark.parametrize(
    ("prepare", "arguments", "said"),
    [
        (lambda out: out.mkdir() or (out / "mine").touch(), (), "holds mine, which is no manifest"),
        (lambda out: theirs(out / "base" / "kustomization.yaml"), (), "holds base/kustomization.yaml, which is no"),
        (lambda out: theirs(add(out) / "base" / "config" / "mine.txt"), (), "holds base/config/mine.txt, which is no"),
        (lambda out: theirs(add(out) / "collect.yaml"), (), "holds collect.yaml, which is no manifest of ours"),
        (lambda out: None, ("--set", "name=1st"), "cannot name a service"),
        (lambda out: None, ("--certs", "/nowhere"), "/nowhere"),
        (lambda out: None, ("--set", "plaintext=false"), "give --certs, or write `plaintext: true`"),
    ],
)
def test_what_cannot_be_written_is_said_and_nothing_is(
    prepare: Callable[[Path], object],
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    prepare(out)
    before = contents(tmp_path)
    assert main(["manifests", str(DEMO), "--set", "plaintext=true", "--out", str(out), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_paths_of_this_machine_stay_here(tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "protocol": "fibfl",
        "plaintext": True,
        "data": {"name": "npz", "path": "sites/{id}/data.npz"},
    }
    content["ring"] = [{"id": f"peer{n}", "address": f"127.0.0.1:{7700 + n}"} for n in range(2)]
    content["ring"].append({"id": "peer2", "dials_out": True, "data": {"name": "npz", "path": "its/own.npz"}})
    spec = tmp_path / "federation.yaml"
    spec.write_text(json.dumps(content))
    out = tmp_path / "out"
    assert main(["manifests", str(spec), "--out", str(out)]) == 0
    assert str(tmp_path) not in (out / "base" / "config" / "federation.yaml").read_text()
    made = load_spec(out / "base" / "config" / "federation.yaml").model_dump(mode="json", exclude_none=True)
    assert made["data"]["path"] == "/data/{id}/data.npz"
    address = "federation-2.federation:7700"
    assert made["ring"][2].items() >= {"id": "peer2", "address": address}.items()
    assert made["ring"][2]["data"]["path"] == "/data/own.npz"
    assert "dials_out" not in made["ring"][2]

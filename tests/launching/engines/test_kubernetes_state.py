"""What the launcher makes of what a cluster says of its pods, in the words of Kubernetes' own documentation."""

import asyncio
import errno
import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from launcher.engines import kubernetes
from launcher.engines.base import Run, engine
from launcher.engines.kubernetes import KubernetesDeployment, PeerPods
from launcher.engines.kubernetes_cluster import Cluster, ClusterState, CutError, Kubectl, refusal
from launcher.engines.kubernetes_objects import POD_INDEX, RunObjects
from launcher.run_files import RunFiles
from peer.errors import InputError
from peer.spec.loading import load_spec

Object = dict[str, Any]


def pod(index: int | None, number: int = 0, **status: Any) -> Object:
    annotations = {} if index is None else {POD_INDEX: str(index)}
    metadata = {
        "name": f"run-{index}-{number}",
        "annotations": annotations,
        "creationTimestamp": f"2026-01-0{number + 1}",
    }
    return {"kind": "Pod", "metadata": metadata, "status": status}


def job(**status: Any) -> Object:
    return {"kind": "Job", "metadata": {"name": "run"}, "status": status}


def waits(reason: str, message: str = "") -> Object:
    return {
        "phase": "Pending",
        "containerStatuses": [{"name": "peer", "state": {"waiting": {"reason": reason, "message": message}}}],
    }


def ended(code: int, reason: str = "Error") -> Object:
    terminated = {"exitCode": code, "reason": reason}
    return {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [{"name": "peer", "state": {"terminated": terminated}}],
    }


def state(*items: Object) -> ClusterState:
    return ClusterState.read(json.dumps({"items": items}))


UNPLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available."}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"phase": "Pending", "conditions": [UNPLACED]}, "Unschedulable: 0/3 nodes are available."),
        (waits("ErrImagePull", "not found"), "ErrImagePull: not found"),
        (
            waits("CreateContainerConfigError", 'secret "x" not found'),
            'CreateContainerConfigError: secret "x" not found',
        ),
        (waits("ContainerCreating"), ""),
        ({"phase": "Running", "containerStatuses": [{"name": "peer", "ready": True, "state": {"running": {}}}]}, ""),
        ({}, ""),
    ],
)
def test_why_a_pod_waits(status: Object, said: str) -> None:
    assert state(pod(0, **status)).pods[0].pending == said


@pytest.mark.parametrize(
    ("items", "stopping", "code"),
    [
        ([job(completedIndexes="0,1")], False, 0),
        ([job(completedIndexes="0-3")], False, 0),
        ([job(), pod(1, **ended(0))], False, 0),
        ([job(), pod(1, phase="Running")], False, None),
        ([job(), pod(1, **ended(137))], False, None),  # the Job starts another
        ([job(), pod(1, **ended(137)), pod(1, 1, phase="Running")], False, None),
        ([job(failedIndexes="1"), pod(1, **ended(137))], False, -9),
        ([job(conditions=[{"type": "Failed", "status": "True"}]), pod(1, **ended(2))], False, 2),
        ([job(conditions=[{"type": "FailureTarget", "status": "True"}]), pod(1, phase="Running")], False, None),
        ([job(failedIndexes="1"), pod(1, phase="Failed", reason="Evicted")], False, -9),
        ([pod(1, **ended(143))], True, 143),
        ([pod(1, phase="Running")], True, None),
        ([], True, -15),
    ],
)
async def test_when_a_peer_has_ended(items: list[Object], stopping: bool, code: int | None, tmp_path: Path) -> None:
    peer = PeerPods(1, tmp_path, lambda _number: None)
    peer.update(state(*items), stopping)
    assert (await peer.wait() if peer.ended else None) == code


async def test_what_the_peer_itself_has_decided_is_final(tmp_path: Path) -> None:
    failed = {"event": "failed", "time": 1.0, "id": "peer1", "message": "the model diverged"}
    (tmp_path / "events.jsonl").write_text(json.dumps(failed) + "\n")
    peer = PeerPods(1, tmp_path, lambda _number: None)
    peer.update(state(job(), pod(1, **ended(1))), stopping=False)
    assert await asyncio.wait_for(peer.wait(), 10) == 1
    # Where the others go on, so does the Job: it starts the peer again, and may bring it back.
    peer = PeerPods(1, tmp_path, lambda _number: None, alone=True)
    peer.update(state(job(), pod(1, **ended(1))), stopping=False)
    assert not peer.ended
    peer.update(state(job(failedIndexes="1"), pod(1, **ended(1))), stopping=False)
    assert await asyncio.wait_for(peer.wait(), 10) == 1


class Emptied(Cluster):
    """Keeps whether the checkpoints were to be removed, too."""

    async def clear(self, claim: bool) -> str:
        self.claim_removed = claim
        return ""


@pytest.mark.parametrize("rounds", [0, 1])
async def test_a_late_exit_2_removes_no_checkpoints(rounds: int, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text("protocol: {name: fibfl}\n")
    run = Run(load_spec(tmp_path / "small.yaml", peers=3), RunFiles(tmp_path))
    run.files.out("peer0").mkdir()
    done = {"event": "round", "time": 1.0, "round": 1, "accuracy": {}, "loss": 1.0}
    (run.files.out("peer0") / "events.jsonl").write_text((json.dumps(done) + "\n") * rounds)
    cluster = Emptied(Kubectl("kubectl"), "run")
    deployment = KubernetesDeployment(run, cluster, cast(RunObjects, None), new=True)
    deployment.loop.take_over(state(job()))
    deployment.loop.peers["peer1"].end(2)
    deployment.loop.idle.set()
    await deployment.stop_all()
    await deployment.close()
    assert cluster.claim_removed == (rounds == 0)


async def test_a_stop_while_it_is_prepared_leaves_nothing(tmp_path: Path) -> None:
    class Busy(Emptied):
        async def look(self) -> ClusterState:
            return state()

        async def remove_peers(self) -> None:
            begun.set()
            await asyncio.Event().wait()

    (tmp_path / "small.yaml").write_text("protocol: {name: fibfl}\n")
    run = Run(load_spec(tmp_path / "small.yaml", peers=3), RunFiles(tmp_path))
    begun, cluster = asyncio.Event(), Busy(Kubectl("kubectl"), "run")
    order = SimpleNamespace(job={"metadata": {"annotations": {}}})
    deployment = KubernetesDeployment(run, cluster, cast(RunObjects, order), new=True)
    preparing = asyncio.create_task(deployment.prepare())
    await begun.wait()
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    assert cluster.claim_removed


async def test_restarts_are_the_pods_after_the_first(tmp_path: Path) -> None:
    peer = PeerPods(1, tmp_path, lambda _number: None)
    peer.update(state(job(), pod(0, phase="Running"), pod(1, **ended(137))), stopping=False)
    assert peer.restarts == 0
    peer.update(state(job(), pod(1, **ended(137)), pod(1, 1, **ended(1)), pod(1, 2, phase="Running")), stopping=False)
    assert peer.restarts == 2


@pytest.mark.parametrize(
    ("complaint", "said", "passes"),
    [
        ("Unable to connect to the server: dial tcp: lookup x: no such host", "the cluster cannot be reached", True),
        (
            "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
            "reached",
            True,
        ),
        ('Error from server (NotFound): namespaces "lab" not found', "`kubectl create namespace lab`", False),
        ('Error from server (Forbidden): jobs.batch is forbidden: User "me" cannot create', "does not allow it", False),
        ("error: cannot locate context lab", "`kubectl config get-contexts`", False),
        ("Error in configuration: context was not found for specified context: lab", "get-contexts`", False),
        ('error: context "lab" does not exist', "`kubectl config get-contexts`", False),
        ("Error from server (Invalid): Job is invalid: spec.x\nmore", "kubectl apply failed: more", False),
        ("", "it does not say why", False),
    ],
)
def test_what_kubectl_complains_of_is_one_sentence(complaint: str, said: str, passes: bool) -> None:
    error = refusal("apply", complaint)
    assert said in str(error)
    assert "\n" not in str(error)
    assert isinstance(error, CutError) == passes


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "`image` must be chosen; give it with --option image="),
        ({"image": "dfl", "memory": "lots"}, "`memory`"),
        ({"image": "dfl", "gpu": 1}, "did you mean `gpus`"),
    ],
)
def test_what_cannot_be_chosen_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        engine("kubernetes", given)


async def test_a_full_disk_of_the_launcher_keeps_no_pod_from_being_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the pods have printed is lost."""
    (tmp_path / "small.yaml").write_text("protocol: fibfl\n")
    run, stopped = Run(load_spec(tmp_path / "small.yaml", peers=3), RunFiles(tmp_path)), list[bool]()

    async def log(_index: int | None) -> dict[str, list[str]]:
        return {"run-0-0": ["a line"]}

    async def stop(kill: bool) -> None:
        stopped.append(kill)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kubernetes, "write_at", full)
    cluster = SimpleNamespace(name="run", log=log, stop=stop)
    loop = kubernetes.ControlLoop(run, cast(Any, cluster), cast(Any, None), cast(Any, None))
    loop.state = state(job(), pod(0, phase="Running"))
    loop.ask(signal.SIGTERM)
    await loop._apply_signal()
    assert stopped == [False]

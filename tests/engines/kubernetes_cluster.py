"""A cluster for tests: what is stored, a Job's controller, and pods that are processes of this machine.

The processes have their volumes where a pod has them, and the names of the headless service lead to addresses of
loopback. What kubectl asks is answered in `kubernetes_api.py`.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path

from kubernetes_api import Handler, Object, RefusedError
from spdy import dictionary

ROOT = Path(__file__).parents[2]
INDEX = "batch.kubernetes.io/job-completion-index"
ENDED = ("completedIndexes", "failedIndexes")
BACKOFF = 0.5
"""Seconds before a pod that failed is replaced; a real Job begins with 10."""


def missing() -> str:
    """Why there can be no such cluster here; empty when there can."""
    kubectl = shutil.which("kubectl")
    if not kubectl:
        return "kubectl is not installed (Debian: kubernetes-client)"
    if not dictionary(Path(kubectl).resolve()):
        return "this kubectl speaks no SPDY, which the tests' API server does"
    if os.geteuid() != 0 or not shutil.which("unshare") or subprocess.call(["unshare", "--mount", "true"]):
        return "pods with volumes of their own need root, and mounts that it may make"
    return ""


class Cluster:
    """base: an empty directory for its volumes."""

    def __init__(self, base: Path, port: int) -> None:
        self.base = base
        self.objects: dict[tuple[str, str], Object] = {}
        """By plural and name, of the one namespace `default`."""
        self.changed = threading.Condition(threading.RLock())
        self.version = 0
        self.history: list[tuple[int, str, str, Object]] = []
        """What has happened: version, event, plural, object."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.unplaceable = self.unpullable = ""
        """Why pods find no node, and no image; empty when they do."""
        self.forbidden: set[str] = set()
        """Resources, such as pods/exec, that nobody may use."""
        self.minor = "31"
        self.words = dictionary(Path(shutil.which("kubectl") or "").resolve())
        self.connections = set[socket.socket]()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), type("Bound", (Handler,), {"cluster": self}))
        self._server.daemon_threads = True
        self.network = f"127.{10 + os.getpid() % 200}.{port % 250}"
        self.closing = False

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "faults")])
        home = {"KUBECONFIG": str(self.base / "kubeconfig"), "HOME": str(self.base)}
        return os.environ | home | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    @staticmethod
    def kubeconfig(port: int) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
            "users": [{"name": "somebody", "user": {"token": "x"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "somebody", "namespace": "default"}}],
            "current-context": "test",
        }

    def start(self) -> None:
        config = self.kubeconfig(self._server.server_address[1])
        (self.base / "kubeconfig").write_text(json.dumps(config))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Answers nobody any more."""
        if not self.closing:
            self.closing = True
            self._server.shutdown()
            self._server.server_close()
            with self.changed:
                self.changed.notify_all()

    def stop(self) -> None:
        self.close()
        for process in self.processes.values():
            process.kill()
            process.wait()

    def cut(self) -> None:
        """Breaks every connection that there is."""
        for connection in [*self.connections]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # What is stored.

    def named(self, plural: str) -> list[str]:
        with self.changed:
            return sorted(name for kind, name in self.objects if kind == plural)

    def everything(self) -> list[str]:
        with self.changed:
            return sorted(f"{kind}/{name}" for kind, name in self.objects)

    def store(self, plural: str, one: Object) -> Object:
        with self.changed:
            key = (plural, one["metadata"]["name"])
            before, self.version = self.objects.get(key), self.version + 1
            metadata = one["metadata"]
            metadata.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
            metadata.setdefault("uid", f"uid-{self.version}")
            metadata |= {"resourceVersion": str(self.version), "namespace": "default"}
            self.objects[key] = one
            self._happened("MODIFIED" if before else "ADDED", plural, one)
            return one

    def _happened(self, event: str, plural: str, one: Object) -> None:
        self.history.append((self.version, event, plural, json.loads(json.dumps(one))))
        self.changed.notify_all()

    def drop(self, plural: str, name: str) -> None:
        with self.changed:
            if one := self.objects.pop((plural, name), None):
                self.version += 1
                one["metadata"]["resourceVersion"] = str(self.version)
                self._happened("DELETED", plural, one)

    def seen(self, plural: str) -> set[str]:
        """The names of all that there ever were."""
        with self.changed:
            return {one["metadata"]["name"] for _, _, kind, one in self.history if kind == plural}

    def get(self, plural: str, name: str) -> Object:
        with self.changed:
            if (plural, name) not in self.objects:
                raise RefusedError(404, "NotFound", f'{plural} "{name}" not found')
            return self.objects[plural, name]

    def apply(self, plural: str, one: Object, dry: bool) -> Object:
        """Apply a whole object, like a server-side apply."""
        with self.changed:
            key = (plural, one["metadata"]["name"])
            before = self.objects.get(key)
            if before:
                changed = plural in ("jobs", "pods") and one["spec"] != before["applied"]["spec"]
                if changed:
                    raise RefusedError(422, "Invalid", f'{plural} "{key[1]}" is invalid: spec: field is immutable')
                one = before | {"metadata": before["metadata"] | one["metadata"]}
            else:
                one = {**one, "applied": {"spec": one.get("spec")}}
            if dry:
                return one
            made = self.store(plural, one)
            if before is None and plural == "pods":
                self.run_pod(made)
            if before is None and plural == "jobs":
                for index in range(made["spec"]["completions"]):
                    self.make_pod(made, index)
            return made

    # The Job's controller.

    def make_pod(self, job: Object, index: int) -> None:
        with self.changed:
            name = job["metadata"]["name"]
            template = job["spec"]["template"]
            annotation = {INDEX: str(index)}
            metadata = {
                "name": f"{name}-{index}-{self.version:05d}",
                "labels": template["metadata"]["labels"] | annotation | {"job-name": name},
                "annotations": annotation,
            }
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
            self.run_pod(self.store("pods", pod))

    def pod_ended(self, pod: Object, code: int) -> None:
        with self.changed:
            name = pod["metadata"]["name"]
            ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}
            container = {"name": "peer", "ready": False, "state": {"terminated": ended}}
            pod["status"] = {"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": [container]}
            if ("pods", name) in self.objects:
                self.store("pods", pod)
            if "deletionTimestamp" in pod["metadata"]:
                return self.drop("pods", name)
            job = self.objects.get(("jobs", pod["metadata"]["labels"].get("job-name", "")))
            if job:
                self.decide(job, pod, code)
        return None

    def decide(self, job: Object, pod: Object, code: int) -> None:
        status, index = job.setdefault("status", {}), int(pod["metadata"]["annotations"][INDEX])
        done, lost = ({int(one) for one in status.get(key, "").split(",") if one} for key in ENDED)
        wrong = job["spec"]["podFailurePolicy"]["rules"][0]
        refused = code in wrong["onExitCodes"]["values"]
        failures = [one for one in self.pods_of(job, index) if one.get("status", {}).get("phase") == "Failed"]
        if refused and wrong["action"] == "FailJob":
            self.job_failed(job, "PodFailurePolicy", f"Container peer for pod failed with exit code {code}")
        elif code == 0 or refused or len(failures) > job["spec"]["backoffLimitPerIndex"]:
            (lost if code else done).add(index)
            status |= {key: ",".join(map(str, sorted(those))) for key, those in zip(ENDED, (done, lost), strict=True)}
            if len(lost) > job["spec"].get("maxFailedIndexes", len(lost)):
                said = "Job has exceeded the specified maximal failed indexes"
                self.job_failed(job, "MaxFailedIndexesExceeded", said)
            elif len(done) == job["spec"]["completions"]:
                status["conditions"] = [{"type": "Complete", "status": "True"}]
            elif len(done | lost) == job["spec"]["completions"]:
                self.job_failed(job, "FailedIndexes", "Job has failed indexes")
        elif not status.get("conditions"):
            threading.Timer(BACKOFF, self._again, (job, index)).start()
        self.store("jobs", job)

    def _again(self, job: Object, index: int) -> None:
        with self.changed:
            if self.objects.get(("jobs", job["metadata"]["name"])) is job and not job["status"].get("conditions"):
                self.make_pod(job, index)

    def job_failed(self, job: Object, reason: str, message: str) -> None:
        job["status"]["conditions"] = [{"type": "Failed", "status": "True", "reason": reason, "message": message}]
        for pod in self.pods_of(job):
            self.end_pod(pod, 30)

    def pods_of(self, job: Object, index: int | None = None) -> list[Object]:
        of_job = [
            one
            for (plural, _), one in self.objects.items()
            if plural == "pods" and one["metadata"]["labels"].get("job-name") == job["metadata"]["name"]
        ]
        return [one for one in of_job if index in (None, int(one["metadata"]["annotations"][INDEX]))]

    # The kubelet.

    def run_pod(self, pod: Object) -> None:
        threading.Thread(target=self._live, args=(pod,), daemon=True).start()

    def _live(self, pod: Object) -> None:
        with self.changed:
            while reason := self._waits(pod):
                if pod.get("status") != reason:
                    pod["status"] = reason
                    self.store("pods", pod)
                self.changed.wait()
            if "deletionTimestamp" in pod["metadata"] or self.closing:
                return
            process = self._process(pod)
            name = pod["metadata"]["name"]
            self.processes[name] = process
            container = {"name": "peer", "ready": True, "state": {"running": {}}}
            pod["status"] = {"phase": "Running", "containerStatuses": [container]}
            self.store("pods", pod)
        code = process.wait()
        self.pod_ended(pod, 128 - code if code < 0 else code)

    def _waits(self, pod: Object) -> Object | None:
        if "deletionTimestamp" in pod["metadata"] or self.closing:
            return None
        if self.unplaceable:
            said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": self.unplaceable}
            return {"phase": "Pending", "conditions": [said]}
        if self.unpullable:
            waiting = {"reason": "ImagePullBackOff", "message": self.unpullable}
            return {"phase": "Pending", "containerStatuses": [{"name": "peer", "state": {"waiting": waiting}}]}
        return None

    def _process(self, pod: Object) -> "subprocess.Popen[bytes]":
        name, spec = pod["metadata"]["name"], pod["spec"]
        (container,) = spec["containers"]
        index = pod["metadata"].get("annotations", {}).get(INDEX, "")
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        address = f"{self.network}.{int(index) + 1}" if index else f"{self.network}.254"
        mounts = {"/code": str(ROOT / "tests" / "faults")}
        for mount in container["volumeMounts"]:
            if mount["mountPath"] != "/tmp":
                here = self._volume(volumes[mount["name"]], address) / mount.get("subPathExpr", "").replace(
                    "$(DFL_INDEX)", index
                )
                here.mkdir(exist_ok=True)
                mounts[mount["mountPath"]] = str(here)
        hosts = self.base / f"{name}.hosts"
        job = spec.get("subdomain", "")
        lines = [f"{self.network}.{i + 1} {job}-{i}.{job}" for i in range(8)]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
        asked = json.dumps(
            {"root": str(self.base / f"{name}.{pod['metadata']['uid']}"), "mounts": mounts, "hosts": str(hosts)}
        )
        arguments = [one.replace("$(DFL_INDEX)", index) for one in container.get("args", [])]
        command = container.get("command") or [sys.executable, "-P", "-m", "peer.cli", "--config"]
        if command[0] == "sleep":
            command = ["/usr/bin/sleep", *command[1:]]
        inside = [sys.executable, str(Path(__file__).with_name("kubernetes_pod.py")), asked]
        with (self.base / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                ["unshare", "--mount", *inside, *command, *arguments],
                env=self.environment | {"DFL_INDEX": index},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _volume(self, volume: Object, address: str) -> Path:
        """A directory with what the volume holds."""
        if claim := volume.get("persistentVolumeClaim"):
            there = self.base / f"claim-{claim['claimName']}"
            there.mkdir(exist_ok=True)
            return there
        if secret := volume.get("secret"):
            there = self.base / secret["secretName"]
            for item in secret["items"]:
                (there / item["path"]).parent.mkdir(parents=True, exist_ok=True)
                (there / item["path"]).write_bytes(
                    b64decode(self.get("secrets", secret["secretName"])["data"][item["key"]])
                )
            return there
        there = self.base / f"{volume['configMap']['name']}-config-{address}"
        there.mkdir(exist_ok=True)
        for name, text in self.get("configmaps", volume["configMap"]["name"])["data"].items():
            # All pods are on one machine: each listens at an address of its own.
            (there / name).write_text(text.replace("0.0.0.0:", f"{address}:"))
        return there

    def end_pod(self, pod: Object, grace: float) -> None:
        """SIGTERM, and SIGKILL after `grace` seconds."""
        process = self.processes.get(pod["metadata"]["name"])
        if process and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            threading.Timer(grace, process.kill).start()

    def delete(self, plural: str, name: str, grace: float) -> None:
        with self.changed:
            one = self.get(plural, name)
            if plural == "pods":
                one["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                process = self.processes.get(name)
                if process and process.poll() is None:
                    self.store("pods", one)
                    return self.end_pod(one, grace)
            self.drop(plural, name)
            if plural == "jobs":
                for pod in self.pods_of(one):
                    self.delete("pods", pod["metadata"]["name"], 30)
            if plural == "persistentvolumeclaims":
                shutil.rmtree(self.base / f"claim-{name}", ignore_errors=True)
        return None

    def kill_pod(self, index: int) -> None:
        """Kill a pod as the kernel does when memory is short."""
        with self.changed:
            (job,) = [one for (plural, _), one in self.objects.items() if plural == "jobs"]
            name = self.pods_of(job, index)[-1]["metadata"]["name"]
        self.processes[name].kill()

    def pids(self) -> list[int]:
        return [process.pid for process in self.processes.values() if process.poll() is None]

    def logs(self) -> str:
        return "".join(f"--- {log.name}\n{log.read_text()}" for log in self.base.glob("*.log"))

    def launch(self, *arguments: str | Path) -> "subprocess.Popen[str]":
        return self.launch_in({"KUBECONFIG": str(self.base / "kubeconfig"), "HOME": str(self.base)}, *arguments)

    @staticmethod
    def launch_in(environment: Mapping[str, str], *arguments: str | Path) -> "subprocess.Popen[str]":
        """dfl-launch."""
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "faults")])
        here = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | environment
        command = [sys.executable, "-P", "-m", "launcher.cli", *map(str, arguments)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, env=here, text=True, **pipes)  # type: ignore[call-overload]

"""A cluster for tests: an API server of a few kinds, a Job's controller, and pods that are processes of this machine.

What a real kubectl asks of it is answered as Kubernetes documents it; the processes have their volumes where a pod has
them, and the names of the headless service lead to addresses of loopback.
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
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from openapi import CONTENT_TYPE, document
from spdy import Session, dictionary

ROOT = Path(__file__).parents[2]
INDEX = "batch.kubernetes.io/job-completion-index"
Object = dict[str, Any]
KINDS = {
    "": {
        "pods": "Pod",
        "services": "Service",
        "configmaps": "ConfigMap",
        "secrets": "Secret",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "namespaces": "Namespace",
    },
    "batch": {"jobs": "Job"},
    "policy": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "networking.k8s.io": {"networkpolicies": "NetworkPolicy"},
    "authorization.k8s.io": {"selfsubjectaccessreviews": "SelfSubjectAccessReview"},
}
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


class RefusedError(Exception):
    """code: of HTTP. reason: in Kubernetes' word."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": reason,
            "message": message,
            "code": code,
            "metadata": {},
        }


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
        """As a server-side apply does, of whole objects."""
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
        done = {int(one) for one in status.get("completedIndexes", "").split(",") if one}
        failures = [one for one in self.pods_of(job, index) if one.get("status", {}).get("phase") == "Failed"]
        if code == 0:
            done.add(index)
            status["completedIndexes"] = ",".join(map(str, sorted(done)))
            if len(done) == job["spec"]["completions"]:
                status["conditions"] = [{"type": "Complete", "status": "True"}]
        elif code in job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]:
            self.job_failed(job, "PodFailurePolicy", f"Container peer for pod failed with exit code {code}")
        elif len(failures) > job["spec"]["backoffLimitPerIndex"]:
            status["failedIndexes"] = str(index)
            self.job_failed(job, "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal failed indexes")
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
        """As the kernel does when memory is short."""
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


class Handler(BaseHTTPRequestHandler):
    """One connection of kubectl's."""

    protocol_version = "HTTP/1.1"
    cluster: Cluster

    def log_message(self, *arguments: object) -> None:
        pass

    def handle(self) -> None:
        self.cluster.connections.add(self.connection)
        with suppress(OSError):
            super().handle()
        self.cluster.connections.discard(self.connection)

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_PATCH = do_DELETE = do_GET

    def _answer(self) -> None:
        body = self._body()
        try:
            self._route(json.loads(body) if body[:1] == b"{" else {})
        except RefusedError as error:
            self._send(error.status, error.code)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = b""
        while length := int(self.rfile.readline(), 16):
            found += self.rfile.read(length)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _send(self, content: Object, code: int = 200) -> None:
        self._send_bytes(json.dumps(content).encode(), "application/json", code)

    def _send_bytes(self, data: bytes, kind: str, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _route(self, body: Object) -> None:
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        parts = url.path.strip("/").split("/")
        if found := discovery(parts, self.cluster.minor):
            return self._send(found)
        if parts == ["openapi", "v2"]:
            kinds = [(group, kind) for group, kinds in KINDS.items() for kind in kinds.values()]
            return self._send_bytes(document(kinds), CONTENT_TYPE)
        if parts[0] == "api" and parts[2:3] == ["namespaces"] and len(parts) >= 5:
            return self._resource("", parts[3:], body)
        if parts[0] == "apis" and parts[3:4] == ["namespaces"] and len(parts) >= 6:
            return self._resource(parts[1], parts[4:], body)
        if parts[-1] == "selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            what = "/".join(one for one in (asked["resource"], asked.get("subresource")) if one)
            return self._send(body | {"status": {"allowed": what not in self.cluster.forbidden}}, 201)
        raise RefusedError(404, "NotFound", f"the server could not find the requested resource {url.path}")

    def _resource(self, group: str, parts: list[str], body: Object) -> None:
        namespace, plural, name, sub = [*parts, "", ""][:4]
        what = f"{plural}/{sub}" if sub else plural
        if what in self.cluster.forbidden:
            raise RefusedError(
                403,
                "Forbidden",
                f'{what} is forbidden: User "somebody" cannot use resource "{what}" in API group "{group}"',
            )
        if namespace != "default" and self.command != "GET":
            raise RefusedError(404, "NotFound", f'namespaces "{namespace}" not found')
        if sub == "log":
            return self._log(name)
        if sub == "exec":
            return self._exec(name)
        if self.command == "PATCH":
            with self.cluster.changed:
                made = self.cluster.apply(plural, body, "dryRun" in self.query)
                return self._send({key: value for key, value in made.items() if key != "applied"})
        if self.command == "DELETE":
            self.cluster.delete(plural, name, body.get("gracePeriodSeconds", 30))
            return self._send({"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {}})
        if name:
            return self._send(self.cluster.get(plural, name))
        return self._watch(group, plural) if "watch" in self.query else self._list(group, plural)

    def _matches(self, one: Object) -> bool:
        labels, wanted = one["metadata"].get("labels", {}), self.query.get("labelSelector", [""])[0]
        fields = self.query.get("fieldSelector", [""])[0]
        pairs = [pair.split("=") for pair in wanted.split(",") if pair]
        named = fields.removeprefix("metadata.name=") in ("", one["metadata"]["name"])
        return named and all(labels.get(key) == value for key, value in pairs)

    def _list(self, group: str, plural: str) -> None:
        with self.cluster.changed:
            kind = KINDS[group][plural]
            api = "v1" if not group else f"{group}/v1"
            items = [one for (of, _), one in self.cluster.objects.items() if of == plural and self._matches(one)]
            version = {"resourceVersion": str(self.cluster.version)}
            self._send({"kind": f"{kind}List", "apiVersion": api, "metadata": version, "items": items})

    def _watch(self, group: str, plural: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        since = int(self.query.get("resourceVersion", ["0"])[0] or 0)
        for event, one in self._news(plural, since):
            self.wfile.write(json.dumps({"type": event, "object": one}).encode() + b"\n")
            self.wfile.flush()
        self.close_connection = True

    def _news(self, plural: str, since: int) -> Iterator[tuple[str, Object]]:
        while not self.cluster.closing:
            with self.cluster.changed:
                fresh = [one for one in self.cluster.history if one[0] > since]
                if not fresh:
                    self.cluster.changed.wait(1)
            for version, event, of, one in fresh:
                since = version
                if of == plural and self._matches(one):
                    yield event, one

    def _log(self, name: str) -> None:
        self._send_bytes((self.cluster.base / f"{name}.log").read_bytes(), "text/plain")

    def _exec(self, name: str) -> None:
        if self.headers.get("Upgrade", "").lower() != "spdy/3.1":
            raise RefusedError(400, "BadRequest", "this server speaks SPDY only")  # a newer kubectl tries that next
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "SPDY/3.1")
        self.send_header("X-Stream-Protocol-Version", "v4.channel.k8s.io")
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        session = Session(self.connection, self.cluster.words)
        session.await_streams("error", "stdin", "stdout", "stderr")
        session.stdin_ended.wait(30)
        pid = self.cluster.processes[name].pid
        enter = ["nsenter", "--target", str(pid), "--mount", "--root", "--wd", "--"]
        environment = self.cluster.environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen([*enter, *self.query["command"]], env=environment, **pipes) as process:  # type: ignore[call-overload]
            threading.Thread(target=lambda: (session.gone.wait(), process.kill()), daemon=True).start()
            with suppress(OSError):
                process.stdin.write(b"".join(session.stdin))
                process.stdin.close()
                while data := process.stdout.read1(1 << 16):
                    session.send("stdout", data)
        code = process.returncode
        cause = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
        failed = {"status": "Failure", "reason": "NonZeroExitCode", "message": f"exit code {code}", "details": cause}
        session.send("stdout", b"", last=True)
        session.send("stderr", b"", last=True)
        session.send(
            "error", json.dumps({"metadata": {}, **(failed if code else {"status": "Success"})}).encode(), True
        )
        session.gone.wait(5)


def discovery(parts: list[str], minor: str) -> Object | None:
    """What there is to be asked for; None if something else is asked."""
    if parts == ["version"]:
        return {"major": "1", "minor": minor, "gitVersion": f"v1.{minor}.0"}
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if parts == ["apis"]:
        groups = []
        for name in filter(None, KINDS):
            version = {"groupVersion": f"{name}/v1", "version": "v1"}
            groups.append({"name": name, "versions": [version], "preferredVersion": version})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    group = "" if parts == ["api", "v1"] else parts[1] if len(parts) == 3 and parts[0] == "apis" else None
    if group is None or group not in KINDS:
        return None
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    resources = [
        {
            "name": plural,
            "singularName": kind.lower(),
            "kind": kind,
            "namespaced": kind not in ("Namespace", "SelfSubjectAccessReview"),
            "verbs": verbs,
        }
        for plural, kind in KINDS[group].items()
    ]
    subs = [
        {"name": f"pods/{one}", "kind": "Pod", "namespaced": True, "verbs": ["get", "create"]}
        for one in ("log", "exec")
    ]
    resources += subs if not group else []
    return {"kind": "APIResourceList", "groupVersion": f"{group}/v1".lstrip("/"), "resources": resources}

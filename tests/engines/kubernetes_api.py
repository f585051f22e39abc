"""What a real kubectl asks of a cluster for tests, over HTTP and SPDY, answered as Kubernetes documents it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from openapi import CONTENT_TYPE, document
from spdy import Session

if TYPE_CHECKING:
    from kubernetes_cluster import Cluster

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


class Handler(BaseHTTPRequestHandler):
    """One connection of kubectl's."""

    protocol_version = "HTTP/1.1"
    cluster: "Cluster"

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

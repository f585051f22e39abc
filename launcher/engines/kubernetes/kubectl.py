"""The user's own kubectl: what it is asked, and what it answers."""

import asyncio
import os
import re
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from peer.errors import FailedError, InputError
from peer.text import one_line

ANSWER, PATIENCE = 20, 60.0
"""Seconds that the cluster has for one answer, and kubectl for all of them."""
UNREACHABLE = re.compile(
    r"unable to connect|connection to the server|dial tcp|i/o timeout|deadline exceeded|timed? ?out|connection refused"
    r"|request canceled|no configuration has been provided|\bEOF\b",
    re.IGNORECASE,
)
LONGEST_LINE = 1 << 20


class CutError(FailedError):
    """The cluster cannot be reached now; later it may."""


@dataclass(frozen=True)
class Kubectl:
    """context, namespace: empty for those that kubectl chooses itself."""

    program: str
    context: str = ""
    namespace: str = ""

    async def ask(self, *arguments: str, given: str = "") -> str:
        """What kubectl prints. FailedError with its reason, or when the cluster does not answer in time."""
        async with self._running(PIPE, f"--request-timeout={ANSWER}s", *arguments) as process:
            try:
                async with asyncio.timeout(PATIENCE):
                    answer, complaint = await process.communicate(given.encode())
            except TimeoutError:
                raise unreachable(f"no answer to `kubectl {arguments[0]}` in {PATIENCE:g} s") from None
        if process.returncode:
            raise refusal(arguments[0], complaint.decode(errors="replace"))
        return answer.decode(errors="replace")

    @asynccontextmanager
    async def listen(self, *arguments: str, given: str = "") -> AsyncIterator[asyncio.StreamReader]:
        """What kubectl prints for as long as the block lasts, its complaints included."""
        async with self._running(STDOUT, *arguments) as process:
            assert process.stdin
            assert process.stdout
            with suppress(ConnectionError):
                process.stdin.write(given.encode())
                await process.stdin.drain()
            process.stdin.close()
            yield process.stdout

    @asynccontextmanager
    async def _running(self, complaints: int, *arguments: str) -> AsyncIterator[Process]:
        chosen = {"context": self.context, "namespace": self.namespace}
        command = [self.program, *(f"--{key}={value}" for key, value in chosen.items() if value), *arguments]
        try:
            # In a group of its own: Ctrl-C is for the launcher, which still needs it.
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=complaints, limit=LONGEST_LINE, process_group=0
            )
        except OSError as error:
            why = error.strerror or error
            raise InputError(
                f"--on kubernetes: `{self.program}` cannot be started ({why}); install kubectl, or name it with "
                "--option kubectl=/path/to/kubectl"
            ) from None
        try:
            yield process
        finally:
            if process.returncode is None:
                # process.kill() could take the exit code from who waits for it; and what kubectl has started goes, too.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


def unreachable(why: str) -> CutError:
    return CutError(
        f"the cluster cannot be reached: {why}; see what `kubectl cluster-info` says, or choose another cluster with "
        "--option context=NAME"
    )


def refusal(verb: str, complaint: str) -> FailedError:
    """What kubectl says, as one sentence with the way out."""
    lines = [line for line in complaint.splitlines() if line.strip() and not line.lower().startswith("warning")]
    said = one_line(re.sub(r"^(error|Error from server \(\w+\)): ", "", lines[-1])) if lines else "it does not say why"
    if found := re.search(r'namespaces? "([^"]+)" not found', complaint):
        return FailedError(
            f"the cluster has no namespace `{found[1]}`; make it with `kubectl create namespace {found[1]}`, or choose "
            "another with --option namespace=NAME"
        )
    if "(Forbidden)" in complaint or "forbidden:" in complaint:
        return FailedError(
            f"the cluster does not allow it ({said}); ask for this right, or choose another --option namespace=NAME"
        )
    if re.search(r"context .*(does not exist|not found)|no context exists|cannot locate context", complaint):
        return FailedError(f"kubectl: {said}; `kubectl config get-contexts` lists those there are")
    if UNREACHABLE.search(complaint):
        return unreachable(said)
    return FailedError(f"kubectl {verb} failed: {said}")

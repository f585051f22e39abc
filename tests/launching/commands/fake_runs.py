"""What a run of `dfl-launch` with fake peers is, and leaves behind."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from launcher.engines import base
from launcher.engines.local import ForkServer, LocalEngine, ServerProcess, fork_server

HERE = Path(__file__).parent
"""Where fake_peer.py is."""


class FakeEngine(LocalEngine):
    """Peers that only write their files, and need nothing."""

    def check(self, run: base.Run) -> None:
        pass

    def fork_server(self, run: base.Run) -> AbstractAsyncContextManager[ForkServer]:
        return fork_server(ServerProcess.spawned("fake_peer:main", ("ruamel.yaml",), 1.0), keep=(run.lock,))


Run = Callable[..., tuple[int, str]]


def summary(tmp_path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((tmp_path / "out" / "summary.json").read_text())
    return content


def starts(tmp_path: Path, id: str) -> int:
    return (tmp_path / "out" / id / "starts").stat().st_size

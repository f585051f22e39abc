"""What comes back from a cluster before its volume is removed."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from launcher.engines.base import Run
from launcher.engines.kubernetes import VolumeFiles
from launcher.engines.kubernetes_cluster import CutError, Kubectl
from launcher.run_files import RunFiles
from peer.spec.loading import load_spec
from peer.telemetry.results import AUDIT, BEST_MODEL, MODEL, RESULT


class HereAsPod(Kubectl):
    """Runs in this machine's Python what a pod would."""

    @asynccontextmanager
    async def listen(self, *_: Any, given: str = "", **__: Any) -> AsyncIterator[asyncio.StreamReader]:
        pod = await asyncio.create_subprocess_exec(sys.executable, "-c", given, stdout=asyncio.subprocess.PIPE)
        assert pod.stdout
        yield pod.stdout
        await pod.wait()


class Says(Kubectl):
    """Tells these notices and nothing else."""

    @asynccontextmanager
    async def listen(self, *_: Any, **__: Any) -> AsyncIterator[asyncio.StreamReader]:
        lines = asyncio.StreamReader()
        lines.feed_data("".join(f"{json.dumps(notice)}\n" for notice in NOTICES).encode())
        lines.feed_eof()
        yield lines


DEMO = load_spec(Path(__file__).parents[2] / "examples" / "demo.yaml")
NOTICES: Sequence[dict[str, object]] = ({"file": "/runs/0/p/result.json", "size": 5}, {"over": True})


def test_all_that_a_run_is_worth_comes_back_from_the_volume(tmp_path: Path) -> None:
    files, volume = RunFiles(tmp_path / "run"), tmp_path / "volume"
    files.out("p").mkdir(parents=True)
    volume.mkdir()
    for name in (AUDIT, MODEL, BEST_MODEL, RESULT):
        (volume / name).write_text(f"the {name}")
    (volume / "checkpoint").write_text("stays")

    asyncio.run(VolumeFiles(HereAsPod("kubectl"), "pod", Run(DEMO, files), {"p": str(volume)}).fetch())

    brought = {path.name: path.read_text() for path in files.out("p").iterdir()}
    assert brought == {name: f"the {name}" for name in (AUDIT, MODEL, BEST_MODEL, RESULT)}


def test_a_file_told_of_and_not_sent_is_a_connection_that_was_cut(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "run")
    files.out("p").mkdir(parents=True)
    with pytest.raises(CutError, match=r"result\.json"):
        asyncio.run(VolumeFiles(Says("kubectl"), "pod", Run(DEMO, files), {"p": "/runs/0/p"}).fetch())

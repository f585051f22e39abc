"""What the job decides when its peers have ended: whether it is queued again, and why."""

import json
from pathlib import Path

import pytest

from launcher.engines.programs.slurm_job import Exits, JobRunner, PeerRestarts
from launcher.run_files import RunFiles

CRASH, DONE, FAILED, KILLED, TOLD, WRONG = 139, 0, 1, -9, 143, 2


def ended(place: Path, on_loss: str, codes: Exits, gave_up: str = "", requeued: bool = False) -> JobRunner:
    """The job of a run whose peers have ended so, one of them by its own decision."""
    files = RunFiles(place)
    files.job.mkdir()
    (files.job / "restarts").mkdir()
    files.federation.write_text(json.dumps({"on_loss": on_loss}))
    if requeued:
        (files.job / "row.json").write_text(json.dumps({"row": 1, "round": 3}))
    for id in codes:
        files.out(id).mkdir()
        said = {"time": 1.0, "event": "failed", "message": "it gives up"} if id == gave_up else {}
        (files.out(id) / "events.jsonl").write_text(f"{json.dumps(said)}\n" if said else "")
    return JobRunner(files, [*codes], 7700, 3, 5)


@pytest.mark.parametrize(
    ("on_loss", "codes", "gave_up", "why"),
    [
        ("wait", {"a": DONE, "b": DONE}, "", None),
        ("wait", {"a": None, "b": CRASH}, "", "b ended with exit code 139"),
        ("wait", {"a": None, "b": FAILED}, "b", None),
        ("wait", {"a": TOLD, "b": TOLD}, "", "Slurm has told the peers to end"),
        ("wait", {"a": None, "b": None}, "", "Slurm has ended the peers"),
        ("wait", {"a": None, "b": WRONG}, "", None),
        ("bypass", {"a": DONE, "b": DONE, "c": CRASH}, "", None),
        ("bypass", {"a": DONE, "b": DONE, "c": FAILED}, "c", None),
        ("bypass", {"a": TOLD, "b": TOLD, "c": FAILED}, "c", "Slurm has told the peers to end"),
        ("bypass", {"a": TOLD, "b": DONE, "c": CRASH}, "", "Slurm has told the peers to end"),
        ("bypass", {"a": None, "b": None, "c": FAILED}, "c", "Slurm has ended the peers"),
        ("bypass", {"a": CRASH, "b": KILLED}, "", "a ended with exit code 139, b was killed by SIGKILL"),
        ("bypass", {"a": FAILED, "b": KILLED}, "a", None),
        ("bypass", {"a": None, "b": WRONG}, "", None),
    ],
)
def test_why_the_job_is_queued_again(on_loss: str, codes: Exits, gave_up: str, why: str | None, tmp_path: Path) -> None:
    assert ended(tmp_path, on_loss, codes, gave_up).restart_reason(codes) == why


@pytest.mark.parametrize(
    ("on_loss", "code", "requeued", "ends"),
    [
        ("wait", CRASH, False, True),
        ("wait", FAILED, True, True),
        ("bypass", CRASH, False, False),
        ("bypass", FAILED, False, False),
        ("bypass", WRONG, False, True),
        ("bypass", WRONG, True, False),
    ],
)
def test_the_others_go_on_without_a_peer_only_by_bypass_and_not_if_its_input_is_wrong(
    on_loss: str, code: int, requeued: bool, ends: bool, tmp_path: Path
) -> None:
    job = ended(tmp_path, on_loss, {"a": code}, requeued=requeued)
    assert PeerRestarts(job.files, "a").ends_others(code) == ends

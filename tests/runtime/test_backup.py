"""Rounds that are kept, copies of them, and a rewind: what it needs, what it refuses, and a crash at any step of it."""

import asyncio
import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from peer import cli, files
from peer.errors import FailedError, InputError
from peer.runtime.backup import backup, pending_rewind, rewind, sealed_rounds, valid_rounds
from peer.runtime.checkpoints import Checkpoints, Journal
from peer.runtime.in_process import run_in_process
from peer.runtime.run_directory import check_directory
from peer.spec.federation import Spec
from peer.spec.loading import load_spec, read_peer
from peer.spec.recordings import VIEWS, RunIdentity, known_views
from peer.views.decision import Memory, Slot
from peer.views.statements import Ballot, Decision, canonical
from peer.views.view import View

ROUNDS = 9
BYPASS = {"on_loss": "bypass", "absence": 8, "protocol": "fedavg"}


def spec(place: Path, **keys: Any) -> Spec:
    path = place / "federation.yaml"
    content = {"rounds": ROUNDS, "protocol": "rdfl", "data": {"name": "digits", "limit": 200}, "model": "mlp"}
    path.write_text(json.dumps(content | {"keep": {"every": 2, "last": 2}} | keys))
    return load_spec(path, peers=3)


def run(place: Path, **keys: Any) -> dict[str, str]:
    """All in one process; their models by id."""
    runtimes = asyncio.run(run_in_process(spec(place, **keys), place))
    return {id: runtime.setup.model.sha256() for id, runtime in runtimes.items()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A run that is over, and its models."""
    place = tmp_path_factory.mktemp("finished")
    return place, run(place)


@pytest.fixture
def place(finished: tuple[Path, dict[str, str]], tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_the_newest_rounds_are_kept_and_the_last_few_that_were_asked_for(place: Path) -> None:
    files = Checkpoints(place / "peer0" / "checkpoint")
    assert files.archive.rounds() == [4, 6]
    assert files.rounds()[-2:] == [8, 9]
    assert all(files.archive.verify(round) is None for round in files.archive.rounds())


@pytest.mark.parametrize("round", [4, 8])
def test_all_go_back_and_end_in_the_same_bits(place: Path, round: int, finished: tuple[Path, dict[str, str]]) -> None:
    assert run(place, rewinds=[round]) == finished[1]
    assert run(place, rewinds=[round, 6]) == finished[1], "and once more"
    events = (place / "peer1" / "events.jsonl").read_text().splitlines()
    assert [json.loads(one)["round"] for one in events if '"rewound"' in one] == [round, 6]


def test_one_that_dies_after_it_went_back_tells_so_at_its_next_start(
    place: Path, finished: tuple[Path, dict[str, str]]
) -> None:
    wanted = spec(place, rewinds=[4])
    for id in wanted.ids:
        assert rewind(place / id, id, wanted) == 4
    assert run(place, rewinds=[4]) == finished[1]
    run(place, rewinds=[4])
    events = (place / "peer1" / "events.jsonl").read_text().splitlines()
    assert [json.loads(one)["round"] for one in events if '"rewound"' in one] == [4]


def test_members_that_may_change_go_back_too(tmp_path: Path) -> None:
    """They vote anew."""
    before = run(tmp_path, **BYPASS)
    assert run(tmp_path, **BYPASS, rewinds=[4]) == before


class KilledError(Exception):
    """Stands for the end of the process."""


def interrupted(step: int) -> Callable[..., Any]:
    """Fail at the call of that number of all that changes the disk."""
    left = iter(range(step, -1, -1))

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(left, -1) == 0:
                raise KilledError
            return real(*arguments, **named)

        return call

    return counted


@pytest.mark.parametrize("keys", [{}, BYPASS])
def test_a_rewind_that_is_cut_off_anywhere_is_done_again(changed: Path, tmp_path: Path, keys: dict[str, Any]) -> None:
    rewinds = [MEMBERS | {"round": 4}] if keys else [4]
    wanted, out, ended = spec(changed, **keys, rewinds=rewinds), changed / "peer0", False
    if not keys:
        (out / VIEWS).unlink()
    Journal(out / "journal").directory.mkdir(exist_ok=True)
    before = tmp_path / "before"
    shutil.copytree(out, before)
    for step in range(200):
        shutil.rmtree(out)
        shutil.copytree(before, out)
        counted = interrupted(step)
        with (
            patch("peer.runtime.checkpoints.write_atomically", counted(files.write_atomically)),
            patch("peer.spec.recordings.write_atomically", counted(files.write_atomically)),
            patch.object(Path, "unlink", counted(Path.unlink)),
        ):
            try:
                rewind(out, "peer0", wanted)
                ended = True
            except KilledError:
                assert pending_rewind(out, wanted) == 4
        if ended:
            break
        assert rewind(out, "peer0", wanted) == 4
        checkpoints = Checkpoints(out / "checkpoint")
        assert (checkpoints.rounds(), checkpoints.archive.rounds()) == ([4], [4])
        assert checkpoints.verify(4) is None
        assert RunIdentity.read(out).rewinds == rewinds
        assert not (out / "complete").exists()
    assert ended
    assert step > 8


def test_nobody_is_said_to_have_later_rounds_on_disk(place: Path) -> None:
    archive = Checkpoints(place / "peer0" / "checkpoint").archive
    facts = archive.facts(6)
    facts["network"]["durable"] = {"peer1": 7, "peer2": 5}  # one may have been ahead
    archive.replace_facts(6, facts)
    rewind(place / "peer0", "peer0", spec(place, rewinds=[6]))
    durable = Checkpoints(place / "peer0" / "checkpoint").facts(6)["network"]["durable"]
    assert durable == {"peer1": 6, "peer2": 5}


@pytest.mark.parametrize(
    ("done", "wanted", "why"),
    [
        ([], [5], "cannot go back to round 5, as it holds rounds 4, 6, .*8, 9; choose a round that all peers hold"),
        ([], [4, 6], "has missed the rewind to round 4; go back there or further"),
        ([8], [6], "went back by 8, with which `rewinds` has to begin; write it there"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_changed(
    place: Path, done: list[int], wanted: list[int], why: str
) -> None:
    out = place / "peer0"
    if done:
        rewind(out, "peer0", spec(place, rewinds=done))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="(?s)" + why.replace("(", r"\(")):
        rewind(out, "peer0", spec(place, rewinds=wanted))
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


MEMBERS = {"round": 6, "view": 2, "members": ["peer0", "peer1"]}
"""How all go back past the change of members below."""


@pytest.fixture
def changed(place: Path) -> Path:
    """The run once more, as if peer2 had been lost in round 4 and its members knew it."""
    view = View(1, ("peer0", "peer1"), 4, reason="peer2 silent for 8 s")
    for id in view.members:
        memory = Memory(id, [Decision(view, Ballot(1, "peer0"), ())], Slot(2, promised=Ballot(3, "peer1")), entered=1)
        (place / id / VIEWS).write_bytes(canonical(asdict(memory)))
    return place


@pytest.mark.parametrize(
    ("id", "entry", "why"),
    [
        ("peer0", 6, r'the members have changed; to go back to round 6, give `rewinds` {"round": 6, "view": 2, .*'
         r'"members": \["peer0", "peer1"\]} as its last entry, not 6'),
        ("peer0", 8, r'give `rewinds` {"round": 8, "view": 2, "members": \["peer0", "peer1"\]} as'),
        ("peer0", MEMBERS | {"view": 1}, r'to go back to round 6, give `rewinds` {"round": 6, "view": 2'),
        ("peer0", 5, "cannot go back to round 5, as it holds rounds 4, 6"),
        ("peer0", MEMBERS | {"round": 5}, "cannot go back to round 5, as it holds rounds 4, 6"),
    ],
)  # fmt: skip
def test_after_a_change_of_members_it_is_said_what_to_write(changed: Path, id: str, entry: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        pending_rewind(changed / id, spec(changed, **BYPASS, rewinds=[entry]))


@pytest.mark.parametrize("entries", [[6, MEMBERS], [MEMBERS | {"view": 1}, MEMBERS]])
def test_an_entry_that_cannot_have_been_is_refused_before_anything_is_removed(
    changed: Path, entries: list[Any]
) -> None:
    held = sealed_rounds(changed / "peer0")
    with pytest.raises(
        InputError, match=r"do not go with an entry of `rewinds` before .* remove that entry if no peer"
    ):
        rewind(changed / "peer0", "peer0", spec(changed, **BYPASS, rewinds=entries))
    assert sealed_rounds(changed / "peer0") == held


def test_a_later_entry_replaces_one_with_which_nobody_has_started(changed: Path) -> None:
    """Such as a view that no peer can come to, or what was written twice."""
    wanted = spec(changed, **BYPASS, rewinds=[MEMBERS | {"view": 7}, MEMBERS])
    assert [view.number for view in wanted.rewind_views] == [2]
    assert rewind(changed / "peer0", "peer0", wanted) == 6


def test_the_order_of_its_members_makes_no_other_entry(changed: Path) -> None:
    wanted = spec(changed, **BYPASS, rewinds=[MEMBERS])
    assert rewind(changed / "peer0", "peer0", wanted) == 6
    again = spec(changed, **BYPASS, rewinds=[MEMBERS | {"members": ["peer1", "peer0", "peer1"]}])
    assert pending_rewind(changed / "peer0", again) is None
    assert again.rewind_views == wanted.rewind_views


def test_a_void_round_is_no_round_to_go_back_to(changed: Path) -> None:
    memory = known_views(changed / "peer0")
    memory.entered = 0  # it was killed before it entered the view that made round 4 void
    assert valid_rounds(changed / "peer0", memory) == []
    assert valid_rounds(changed / "peer0", known_views(changed / "peer0"))[:2] == [4, 6]


def test_who_was_no_member_then_keeps_what_it_has_of_before(changed: Path) -> None:
    wanted = spec(changed, **BYPASS, rewinds=[MEMBERS])
    for id, kept in (("peer0", [6]), ("peer2", [])):
        memory = known_views(changed / id)
        assert rewind(changed / id, id, wanted) == 6
        assert sealed_rounds(changed / id) == [4, *(kept or [6])]
        assert known_views(changed / id) == memory, "its promises count as before"
        assert pending_rewind(changed / id, wanted) is None


def test_a_backup_knows_the_views_and_no_promises(changed: Path, tmp_path: Path) -> None:
    backup(changed / "peer0", tmp_path / "backup")
    known = known_views(tmp_path / "backup")
    assert known == replace(known_views(changed / "peer0"), slot=Slot(1), promised=-1)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"rewinds": [MEMBERS]}, "a rewind with a `view` goes with `on_loss: bypass`"),
        ({"rewinds": [MEMBERS | {"members": ["peer0"]}]}, "too few `members` for `fedavg`, which needs 2"),
        ({"rewinds": [MEMBERS | {"members": ["peer0", "peer7"]}]}, "names `peer7`, which is not in the ring"),
    ],
)
def test_rewinds_that_cannot_be_are_refused(tmp_path: Path, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        spec(tmp_path, **(BYPASS if "`on_loss" not in why else {}), **keys)


def test_a_damaged_round_is_no_round_to_go_back_to(place: Path) -> None:
    [state] = (place / "peer0" / "checkpoint" / "archive").glob("round-0004.safetensors")
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(InputError, match="checkpoint of round 4 is damaged"):
        rewind(place / "peer0", "peer0", spec(place, rewinds=[4]))


def test_who_has_nothing_does_not_begin_in_the_middle(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="put a backup there, or remove `rewinds` to begin anew"):
        run(tmp_path, rewinds=[4])


def test_nobody_continues_from_a_backup_alone(place: Path, tmp_path: Path) -> None:
    out = place / "peer0"
    assert {4, 6, 8, 9} <= {*backup(out, tmp_path / "backup")}
    assert not any(path.stat().st_mode & 0o077 for path in (tmp_path / "backup", *(tmp_path / "backup").rglob("*")))
    shutil.rmtree(out)
    (tmp_path / "backup").replace(out)
    with pytest.raises(InputError, match=r"is a backup with rounds 4, 6, .*9, and a peer does not continue from it"):
        run(place)


def test_a_backup_is_whole_or_not_there(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, to = place / "peer0", tmp_path / "backups" / "peer0.tar"
    to.parent.mkdir()
    with (
        patch("peer.runtime.checkpoints.write_atomically", side_effect=FailedError("full")),
        pytest.raises(FailedError),
    ):
        backup(out, to)
    assert not any(to.parent.iterdir())
    assert cli.main(["backup", str(out), str(to), "--round", "6"]) == 0
    assert "round 6 of" in capsys.readouterr().out
    with tarfile.open(to) as tar:
        tar.extractall(tmp_path / "out", filter="data")
    assert sealed_rounds(tmp_path / "out" / "peer0") == [6]
    for wrong, why in (
        ([str(out), str(to)], "exists already"),
        ([str(out), str(tmp_path / "new"), "--round", "5"], "cannot back up round 5, as it holds rounds 4, 6"),
        ([str(tmp_path / "backups"), str(tmp_path / "new")], "holds no run of a peer"),
        ([str(out), str(tmp_path / "not mounted" / "new")], "there is no such directory; create or mount it"),
        ([str(out), str(out / "new")], "lies in the directory that it is to be a copy of"),
    ):
        assert cli.main(["backup", *wrong]) == 2
        assert why in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_backup_of_what_is_replaced_meanwhile_is_tried_again(place: Path, tmp_path: Path) -> None:
    out, real, seen = place / "peer0", files.write_atomically, list[Path]()

    def garbled(path: Path, content: Any, *more: Any) -> None:
        seen.append(path)
        real(path, content[:-1] if len(seen) == 5 else content, *more)

    with patch("peer.runtime.checkpoints.write_atomically", garbled):
        assert {4, 6, 8, 9} <= {*backup(out, tmp_path / "backup")}
    copied = Checkpoints(tmp_path / "backup" / "checkpoint")
    assert all(copied.verify(round) is None for round in copied.rounds())


@pytest.mark.parametrize("content", [{}, {"id": None, "digests": 5}])
def test_a_run_in_a_later_format_is_neither_read_nor_copied_nor_changed(place: Path, content: dict[str, Any]) -> None:
    """Whatever that release writes into its run.json."""
    run = place / "peer0" / "run.json"
    run.write_text(json.dumps(json.loads(run.read_text()) | {"version": 99, "release": "9.0\n+ab"} | content))
    before = run.read_bytes()
    spec(place, ring=[{"id": f"peer{n}", "address": f"127.0.0.1:{7700 + n}"} for n in range(3)])
    (place / "peer.yaml").write_text("{federation: federation.yaml, id: peer0, out: peer0}")
    config, same = read_peer(place / "peer.yaml")
    said = r"directory format 99, written by dfl 9\.0 \+ab, and dfl .* continue it with the release that wrote it"
    for refused in (
        lambda: check_directory(config, same),
        lambda: pending_rewind(place / "peer0", same),
        lambda: backup(place / "peer0", place / "copy"),
    ):
        with pytest.raises(InputError, match=said):
            refused()
    assert run.read_bytes() == before
    assert not (place / "copy").exists()

"""`dfl-launch run` with `on_loss: bypass`, over the real fork server, with peers that only write their files."""

from pathlib import Path

import pytest
import yaml
from fake_runs import Run, summary

from launcher.supervision.run_directory import RunDirectory
from peer.spec.loading import load_spec
from peer.spec.recordings import RunIdentity


@pytest.fixture
def bypass(small: Path) -> None:
    """With a protocol for two peers and more, and rounds enough for the others to see who is given up."""
    content = small.read_text().replace("fibfl", "fedavg").replace("rounds: 3", "rounds: 40")
    small.write_text(content + "on_loss: bypass\n")


@pytest.mark.parametrize("behaviour", ["crashes", "gives up"])
def test_with_bypass_the_others_go_on_without_a_peer_that_is_given_up(
    run: Run, bypass: None, tmp_path: Path, behaviour: str
) -> None:
    code, text = run(peer1=behaviour)
    assert code == 0
    assert "peer1 will not be restarted; the others continue without it" in text
    assert "with changes of view at round 1: peer1 lost" in text
    made = summary(tmp_path)
    assert [peer["id"] for peer in made["per_peer"]] == ["peer0", "peer2"]
    assert (made["exact"], made["absences"]) == (False, {"peer1": [[1, 40]]})
    code, text = run()
    assert (code, "This run is complete" in text) == (0, True)


def test_with_bypass_who_hangs_is_ended_with_the_others(run: Run, bypass: None, tmp_path: Path) -> None:
    assert run(peer1="hangs")[0] == 0
    assert summary(tmp_path)["absences"] == {"peer1": [[1, 40]]}


def test_with_bypass_too_few_end_the_run(run: Run, bypass: None) -> None:
    code, text = run(peer1="gives up", peer2="gives up")
    assert code == 1
    assert "will not be restarted; stopping the run" in text


def test_with_bypass_wrong_input_is_no_loss(run: Run, bypass: None) -> None:
    assert run(peer1="wrong")[0] == 2


def test_wrong_input_of_one_that_the_others_went_on_without_is_a_loss(run: Run, bypass: None, tmp_path: Path) -> None:
    """Its data take so long to load that the others have decided a view without it."""
    code, text = run(peer1="wrong later")
    assert code == 0
    assert "peer1 will not be restarted; the others continue without it" in text
    assert (tmp_path / "out" / "peer0" / "checkpoint").exists()
    assert summary(tmp_path)["absences"] == {"peer1": [[1, 40]]}


def test_each_fresh_run_is_another(run: Run, bypass: None, tmp_path: Path) -> None:
    """What was signed in the one says nothing in the next; one that goes on is the same."""

    def name() -> str:
        return str(yaml.safe_load((tmp_path / "out" / "federation.yaml").read_text())["run"])

    run()
    first = name()
    run()
    assert name() == first
    run(fresh=True)
    assert name() != first


def test_a_run_that_replays_views_has_the_name_under_which_they_were_decided(
    run: Run, bypass: None, small: Path, tmp_path: Path
) -> None:
    """Or their proofs, which it copies, would be those of another run, and its summary would refuse them."""
    run()
    once = load_spec(tmp_path / "out" / "federation.yaml")
    again = load_spec(small, peers=3, overrides=["views=replay", f"recording={tmp_path / 'out'}"])
    for id in once.ids:
        RunIdentity.from_spec(once, id).write(tmp_path / "out" / id)
    assert once.run is not None
    assert RunDirectory(tmp_path / "again").named(again, fresh=False).run == once.run

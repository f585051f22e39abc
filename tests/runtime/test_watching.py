"""Subscribers to a peer's events, as set in its own file and the federation's; other peers do not depend on them."""

from pathlib import Path
from typing import Any

import pytest

from peer.errors import InputError
from peer.spec.agreement import differing
from peer.spec.checks import why_not_continued
from peer.spec.loading import load_peer, load_spec
from peer.spec.peer import PeerConfig, subscriber_settings

WATCHED = "metrics: 9400\ntensorboard: true\ntracker: 'mine:track'\n"


def spec_file(path: Path, more: str = "", peers: int = 3) -> Path:
    ring = "".join(f'  - {{id: peer{n}, address: "127.0.0.1:{9000 + n}"}}\n' for n in range(peers))
    (path / "federation.yaml").write_text(f"protocol: fibfl\n{more}ring:\n{ring}")
    (path / "mine.py").write_text("def track(event): ...\n")
    return path / "federation.yaml"


def of_peer(path: Path, id: str, own: str = "") -> PeerConfig:
    (path / f"{id}.yaml").write_text(f"federation: federation.yaml\nid: {id}\n{own}")
    return subscriber_settings(*load_peer(path / f"{id}.yaml"))


def watched(config: PeerConfig) -> tuple[str | None, bool | None, str | None]:
    return config.metrics, config.tensorboard, config.tracker


def test_it_changes_nothing_that_peers_agree_on(tmp_path: Path) -> None:
    plain = load_spec(spec_file(tmp_path))
    other = load_spec(spec_file(tmp_path, WATCHED))
    assert (other.agreement.digest, other.link_agreement) == (plain.agreement.digest, plain.link_agreement)
    assert why_not_continued(plain, differing(plain.agreement.digests, other.agreement.digests), other.rounds) is None
    assert other.own_code == ["mine:track"]  # it travels to other machines with the rest


def test_each_peer_has_the_next_port(tmp_path: Path) -> None:
    spec_file(tmp_path, WATCHED)
    assert watched(of_peer(tmp_path, "peer0")) == ("127.0.0.1:9400", True, "mine:track")
    assert of_peer(tmp_path, "peer2").metrics == "127.0.0.1:9402"


def test_a_peers_own_file_goes_before(tmp_path: Path) -> None:
    spec_file(tmp_path, WATCHED)
    own = of_peer(tmp_path, "peer1", "metrics: 0.0.0.0:9500\ntensorboard: false\ntracker: 'mine:other'\n")
    assert watched(own) == ("0.0.0.0:9500", False, "mine:other")


def test_nothing_is_watched_unless_it_is_wanted(tmp_path: Path) -> None:
    spec_file(tmp_path)
    assert watched(of_peer(tmp_path, "peer0")) == (None, False, None)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("65534", "`metrics` begins at port 65534 and 3 are needed; begin with 65533 at most"),
        ("8999", "`metrics` of `peer1` would be at port 9000, where a peer listens; begin with another port"),
        ("0.0.0.0:9002", "`metrics` of `peer0` would be at port 9002, where a peer listens"),
        ("0", "`127.0.0.1:0` is not host:port"),
        ("true", "`metrics`"),
        ("everywhere", "`everywhere` is not host:port"),
    ],
)
def test_ports_that_cannot_be(tmp_path: Path, value: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        load_spec(spec_file(tmp_path, f"metrics: {value}\n"))
    assert said in str(error.value)


@pytest.mark.parametrize(("key", "value"), [("tracker", "track"), ("tracker", 3), ("tensorboard", "x")])
def test_what_is_no_tracker(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"`{key}`"):
        load_spec(spec_file(tmp_path, f"{key}: {value}\n"))

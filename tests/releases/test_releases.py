"""What earlier releases have left behind is read by this one, and what peers agree on has stayed the same."""

import json
import re
import tarfile
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from real_peers import BuildWatched
from releases.keep import HERE, IDS, RUN, written

from peer.errors import InputError
from peer.spec import agreement
from peer.spec.agreement import Agreement
from peer.spec.loading import load_spec
from peer.versions import FORMATS, SPEC, VIEWS, release
from peer.views.decision import Memory

RELEASES = sorted(path.stem for path in HERE.glob("*.json"))
CHANGED = (
    "peers of {release} and of this release no longer agree on `{protocol}`: an added key belongs in ADDED of "
    "peer/spec/agreement.py, with the value that means what was done before, or in NOT_COMPARED; a default stays what "
    "it is"
)


def test_the_first_release_is_kept() -> None:
    assert "0.1.0" in RELEASES


@pytest.mark.parametrize("kept", RELEASES)
def test_the_settings_have_the_digests_of_that_release(kept: str, tmp_path: Path) -> None:
    path = tmp_path / "federation.yaml"
    for name, digests in json.loads((HERE / f"{kept}.json").read_text()).items():
        path.write_text(json.dumps(written(name)))
        ours = {key: digest[:12] for key, digest in load_spec(path).agreement.digests.items()}
        assert ours == digests, CHANGED.format(release=kept, protocol=name)


def test_a_key_that_was_added_is_left_out_while_it_means_what_was_done_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain: dict[str, Any] = {"data": {}, "model": {}, "ring": [], "training": {"batch": 32}, "seed": 1}
    before = Agreement.from_plain(plain)
    monkeypatch.setattr(agreement, "ADDED", {"training.clip": None, "speed": "usual", "training.new.deep": 1})
    training = {"batch": 32, "clip": None, "new": {"deep": 1}}
    as_before = Agreement.from_plain(plain | {"training": training, "speed": "usual"})
    assert as_before.content == {**before.content, "training": {"batch": 32, "new": {}}}
    assert Agreement.from_plain(plain | {"training": {"batch": 32, "clip": None}}).digest == before.digest
    for changed in ({"speed": "fast"}, {"training": {"batch": 32, "clip": 1.0}}):
        assert Agreement.from_plain(plain | changed).digest != before.digest


@pytest.mark.long
@pytest.mark.parametrize("kept", RELEASES)
def test_a_run_of_that_release_continues(kept: str, watched: BuildWatched) -> None:
    """Its members have changed; the one that was left out is admitted again. The network is slow, so there is time."""
    made, proxies = watched(RUN["protocol"], peers=len(IDS), **{key: RUN[key] for key in RUN if key != "protocol"})
    proxies.delay = 0.05
    with tarfile.open(HERE / f"{kept}.tar.gz") as tar:
        tar.extractall(made.directory, filter="data")
    begun = {id: len(made.events(id, "round")) for id in IDS}
    made.start()
    assert made.wait() == dict.fromkeys(IDS, 0), made.account()
    assert {result["rounds"] for result in made.results().values()} == {RUN["rounds"]}
    for id in IDS:
        assert made.events(id, "resumed"), id
        assert len(made.events(id, "round")) > begun[id]
    assert max(event["number"] for event in made.events("peer0", "view")) > 1
    assert json.loads((made.directory / "peer0" / "run.json").read_text())["release"] == release()


def test_views_have_the_number_that_is_told() -> None:
    assert get_args(get_type_hints(Memory)["version"]) == (VIEWS.writes,)


def test_a_number_is_understood_from_the_oldest_on_that_is_read() -> None:
    for one in FORMATS:
        assert one.understands(one.writes)
        assert one.understands(one.reads)
        assert not one.understands(one.writes + 1)
        assert not one.understands(one.reads - 1)
        assert one.overlaps(one.writes + 1, one.writes)
        assert not one.overlaps(one.writes + 2, one.writes + 1)
        assert not one.overlaps(one.writes, one.writes + 1), "from a liar"


def test_a_spec_of_a_newer_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "federation.yaml"
    path.write_text(json.dumps(written("fibfl") | {"format": SPEC.writes + 1, "later": 1}))
    with pytest.raises(InputError, match=rf"format {SPEC.writes + 1}, and dfl {re.escape(release())} reads") as told:
        load_spec(path)
    assert "later" not in str(told.value)
    path.write_text(json.dumps(written("fibfl") | {"name": "x", "format": SPEC.writes}))
    path.with_name("without.yaml").write_text(json.dumps(written("fibfl") | {"name": "x"}))
    assert load_spec(path).agreement.digest == load_spec(path.with_name("without.yaml")).agreement.digest

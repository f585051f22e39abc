"""Peers with tables of their own: what must be alike in them, and how a difference is told."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from real_peers import Build, SmallFederation, digests, until

from peer.errors import FailedError, InputError
from peer.network.neighbours import Edges
from peer.runtime.lifecycle import wait_for_neighbours
from peer.spec.federation import Spec
from peer.spec.loading import load_spec

REASON = r"refused: its data has [^;()]+; make the two alike"
"""The whole of it: one difference, one way out."""


def table(path: Path, columns: list[str], rows: int = 40) -> None:
    """Rows with the columns a, b, c in this order, two classes."""
    draw = np.random.default_rng(1)
    values = dict(zip("abc", draw.normal(size=(3, rows)), strict=True))
    lines = [",".join([*(f"{values[name][row]:.4f}" for name in columns), str(row % 2)]) for row in range(rows)]
    path.write_text("\n".join([",".join([*columns, "label"]), *lines]) + "\n")


def test_columns_in_another_order_and_of_another_number_are_refused(federation: Build) -> None:
    made = federation({"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}, 3, patience=60)
    for id, columns in zip(made.ids, (["a", "b", "c"], ["a", "c", "b"], ["a", "b"]), strict=True):
        table(made.directory / f"{id}.csv", columns)
        made.configure(id, data={"name": "csv", "path": f"{id}.csv"})
    made.start()
    for id in made.ids:
        until(lambda id=id: [bool(re.fullmatch(REASON, why)) for why in reasons(made, id)] == [True] * 2, 60, id)  # type: ignore[misc]
    swapped = "refused: its data has column 2 `b`, column 3 `c`, and this peer's column 2 `c`, column 3 `b`"
    assert any(swapped in reason for reason in reasons(made, "peer1"))
    fewer = "refused: its data has 3 columns, column 3 `c`, and this peer's 2 columns; make"
    assert any(fewer in reason for reason in reasons(made, "peer2"))


def reasons(made: SmallFederation, id: str) -> list[str]:
    """Why a peer waits for each of the others, as it said last."""
    return [one["reason"] for event in made.events(id, "waiting")[-1:] for one in event["for"]]


async def test_who_gives_up_on_other_data_names_one_way_out() -> None:
    reason = "refused: its data has 3 columns, and this peer's 2 columns; make the two alike"
    edges = Edges({"left": "127.0.0.1:1"})
    edges.use(0, ["left"], [])
    edges.neighbours["left"].mark_refused(reason)
    with pytest.raises(FailedError) as gave_up:
        await wait_for_neighbours(edges, -1, lambda event: None, 0.01)
    assert str(gave_up.value) == f"gave up after 0.01 s of waiting for left at 127.0.0.1:1: {reason}"


def test_tables_that_agree_are_learnt_from(federation: Build) -> None:
    made = federation({"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}, 3)
    for id in made.ids:
        table(made.directory / f"{id}.csv", ["a", "b", "c"])
        made.configure(id, data={"name": "csv", "path": f"{id}.csv"})
    made.run()


def test_the_spec_gives_the_data_that_the_peers_own_files_would(federation: Build) -> None:
    """By `{id}` in the federation's path and by an entry of the ring: the same bits, and the same agreement."""
    by_files = federation({"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}, 3)
    given = federation({"name": "fibfl", "head_epochs": 1, "extractor_epochs": 1}, 3)
    spec = json.loads((given.directory / "federation.yaml").read_text())
    spec["data"] = {"name": "csv", "path": "{id}/table.csv"}
    spec["ring"][2]["data"] = {"name": "csv", "path": "elsewhere/{id}.csv"}
    (given.directory / "federation.yaml").write_text(json.dumps(spec))
    for number, id in enumerate(given.ids):
        path = given.directory / ("elsewhere/peer2.csv" if number == 2 else f"{id}/table.csv")
        path.parent.mkdir()
        table(path, ["a", "b", "c"], rows=40 + 10 * number)
        by_files.configure(id, data={"name": "csv", "path": str(path)})
    theirs, ours = by_files.run(), given.run()
    assert digests(ours) == digests(theirs)
    assert [ours[id]["samples"] for id in given.ids] == [32, 40, 48]
    for id in given.ids:
        assert ours[id]["accuracy"]["local"] is not None
        assert ours[id]["accuracy"]["global"] is None


def test_a_site_with_its_data_elsewhere_is_not_refused(federation: Build) -> None:
    """What data a peer has, and where, is for it alone to know: another copy of the spec may say otherwise."""
    made = federation("fibfl", 3)
    content = json.loads((made.directory / "federation.yaml").read_text())
    content["data"] = {"name": "csv", "path": "{id}.csv"}
    specs = []
    for number, ring in enumerate(([{}, {}, {}], [{"data": {"name": "csv", "path": "moved.csv"}}, {}, {}])):
        told = [entry | own for entry, own in zip(content["ring"], ring, strict=True)]
        (made.directory / f"spec{number}.yaml").write_text(json.dumps(content | {"ring": told, "name": "tiny"}))
        specs.append(load_spec(made.directory / f"spec{number}.yaml"))
    assert specs[0].agreement.digests == specs[1].agreement.digests


def loaded(directory: Path, data: dict[str, object], entry: object) -> Spec:
    """Three peers, the last of which has an entry of its own."""
    ring: list[dict[str, object]] = [{"id": f"peer{n}", "address": f"127.0.0.1:{7701 + n}"} for n in range(3)]
    ring[2]["data"] = entry
    path = directory / "federation.yaml"
    path.write_text(json.dumps({"protocol": "fibfl", "data": data, "ring": ring}))
    return load_spec(path)


FEDERATIONS = {"name": "csv", "path": "{id}.csv", "label": "y", "limit": 30, "class_names": ["no", "yes"]}


def test_an_entry_of_the_ring_adds_to_the_federations_data(tmp_path: Path) -> None:
    """Key by key; what is about all peers together stays with them."""
    for_all = {"standardize": "own", "drift": [{"round": 2, "labels": [1, 0]}]}
    spec = loaded(tmp_path, FEDERATIONS | for_all, {"decimal": ",", "limit": 20})
    own = spec.ring[2].data
    whole = {**FEDERATIONS, "decimal": ",", "limit": 20}
    assert own is not None
    assert own == loaded(tmp_path, {"name": "digits"}, whole).ring[2].data
    assert (own.drift, own.standardize) == ((), None)
    assert spec.agreement.digests == loaded(tmp_path, FEDERATIONS | for_all, None).agreement.digests
    dealt = {"name": "csv", "path": "all.csv", "partition": {"kind": "dirichlet", "alpha": 1}, "validation": 0.1}
    assert (own := loaded(tmp_path, dealt, {"path": "mine.csv"}).ring[2].data)
    assert (own.partition.kind, own.validation) == ("iid", 0.0)


def test_an_entry_with_another_name_or_a_null_takes_nothing_over(tmp_path: Path) -> None:
    own = loaded(tmp_path, FEDERATIONS, {"name": "npz", "path": "mine.npz"}).ring[2].data
    assert own == loaded(tmp_path, {"name": "digits"}, {"name": "npz", "path": "mine.npz"}).ring[2].data
    spec = loaded(tmp_path, FEDERATIONS, {"limit": None})
    assert spec.ring[2].data
    assert spec.ring[2].data.limit is None
    (tmp_path / "written.yaml").write_text(spec.dump())
    assert load_spec(tmp_path / "written.yaml").ring == spec.ring


def test_a_wrong_key_is_told_where_it_stands(tmp_path: Path) -> None:
    for data, entry, key in ((FEDERATIONS | {"limt": 3}, {}, "limt"), (FEDERATIONS, {"decimall": ","}, "decimall")):
        with pytest.raises(InputError) as refused:
            loaded(tmp_path, data, entry)
        assert str(refused.value).count(f"unknown key `{key}`") == 1

"""The splits against their definitions, and what holds for every one of them."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from peer.errors import InputError
from peer.learning.data.partition import PARTITIONS, AnyPartition, Dirichlet, Iid, LabelSkew, Partition
from peer.learning.data.sources import SOURCES

EXHAUSTIVE = ["iid", "homogeneous", "dirichlet", "pathological", "imbalanced", "quantity"]
SETTINGS: dict[str, dict[str, float]] = {
    "iid": {},
    "homogeneous": {},
    "dirichlet": {"alpha": 0.5},
    "label-skew": {"k": 2},
    "pathological": {"xi": 2},
    "imbalanced": {"kappa": 0.4, "m": 1},
    "quantity": {"delta": 0.8},
}


def make(kind: str, **settings: object) -> Partition:
    return PARTITIONS[kind].model_validate({"kind": kind, **(settings or SETTINGS[kind])})


def names(peers: int) -> list[str]:
    return [f"peer{i}" for i in range(peers)]


def deal(partition: Partition, labels: np.ndarray, peers: int, seed: int = 42) -> list[np.ndarray]:
    return partition.split(labels, names(peers), np.random.default_rng(seed))


@pytest.fixture(scope="module")
def digits() -> np.ndarray:
    return SOURCES["digits"].model_validate({"name": "digits"}).load().train_targets


def test_settings_cover_every_split() -> None:
    assert SETTINGS.keys() == PARTITIONS.keys()


@pytest.mark.parametrize("kind", SETTINGS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_parts_are_disjoint_deterministic_and_never_empty(kind: str, data: st.DataObject) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, 6), min_size=100, max_size=240)))
    peers, seed = data.draw(st.integers(2, 6)), data.draw(st.integers(0, 2**32 - 1))
    try:
        parts = deal(make(kind), labels, peers, seed)
    except InputError:
        assume(False)
    assert len(parts) == peers
    assert all(len(part) and part.dtype == np.int64 for part in parts)
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together)
    assert together.min() >= 0
    assert together.max() < len(labels)
    if kind in EXHAUSTIVE:
        assert len(together) == len(labels)
    again = deal(make(kind), labels, peers, seed)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))


def test_iid_is_array_split_of_a_permutation() -> None:
    expected = np.array_split(np.random.default_rng(42).permutation(11), 3)
    parts = deal(Iid(), np.zeros(11, int), 3)
    assert all(np.array_equal(part, one) for part, one in zip(parts, expected, strict=True))


def test_homogeneous_is_level_per_class_and_in_total() -> None:
    labels = np.repeat([0, 1, 2, 3], [7, 13, 1, 22])
    parts = deal(make("homogeneous"), labels, 4)
    counts = np.array([np.bincount(labels[part], minlength=4) for part in parts])
    assert (counts.max(axis=0) - counts.min(axis=0)).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1


def test_dirichlet_floors_and_gives_the_last_peer_the_rest(digits: np.ndarray) -> None:
    rng = np.random.default_rng(42)
    expected: list[list[int]] = [[] for _ in range(5)]
    for label in range(10):
        members = np.where(digits == label)[0]
        rng.shuffle(members)
        counts = [int(p * len(members)) for p in rng.dirichlet([0.5] * 5)]
        counts[-1] = len(members) - sum(counts[:-1])
        for peer in range(5):
            start = sum(counts[:peer])
            expected[peer] += members[start : start + counts[peer]].tolist()
    parts = deal(make("dirichlet", alpha=0.5), digits, 5)
    assert [part.tolist() for part in parts] == expected
    assert [len(part) for part in parts] == [318, 265, 313, 335, 206]


def test_dirichlet_draws_again_until_nobody_is_empty() -> None:
    labels = np.repeat(np.arange(4), 10)
    split = make("dirichlet", alpha=0.05)
    first_draws = [_one_draw(labels, 4, 0.05, np.random.default_rng(seed)) for seed in range(40)]
    unlucky = [seed for seed, sizes in enumerate(first_draws) if min(sizes) == 0]
    assert unlucky
    for seed in unlucky[:5]:
        assert min(len(part) for part in deal(split, labels, 4, seed)) > 0


def _one_draw(labels: np.ndarray, peers: int, alpha: float, rng: np.random.Generator) -> list[int]:
    sizes = np.zeros(peers, int)
    for label in np.unique(labels):
        members = np.where(labels == label)[0]
        rng.shuffle(members)
        counts = (rng.dirichlet([alpha] * peers) * len(members)).astype(int)
        counts[-1] = len(members) - counts[:-1].sum()
        sizes += counts
    return sizes.tolist()


def test_dirichlet_gives_up_naming_the_empty_peers() -> None:
    with pytest.raises(InputError, match=r"dirichlet split of 3 samples leaves .*peer\d.* larger alpha"):
        deal(make("dirichlet", alpha=0.5), np.array([0, 1, 2]), 5)


@pytest.mark.parametrize(
    ("k", "sizes"),
    [(1, [323, 253, 178, 165, 157]), (2, [367, 367, 317, 264, 122]), (3, [358, 358, 358, 283, 78])],
)
def test_label_skew_sizes_on_digits(digits: np.ndarray, k: int, sizes: list[int]) -> None:
    assert [len(part) for part in deal(make("label-skew", k=k), digits, 5)] == sizes


def test_label_skew_first_peer_gets_its_ranks(digits: np.ndarray) -> None:
    first = deal(make("label-skew", k=2), digits, 5)[0]
    budget = 1437 // 5
    expected = [int(0.275 * budget)] * 2 + [int(0.2 * budget)] * 3 + [int(0.03 * budget)] * 5
    assert np.bincount(digits[first]).tolist() == expected


def test_label_skew_limits() -> None:
    labels = np.repeat(np.arange(4), 50)
    with pytest.raises(InputError, match=r"k=2 needs 5 classes and the data has 4; give a k of at most 1"):
        deal(make("label-skew", k=2), labels, 3)
    greedy = LabelSkew(kind="label-skew", k=1, fractions=(1.0, 1.0, 1.0))
    with pytest.raises(InputError, match=r"leaves peer2, peer3, peer4 without any; give smaller fractions"):
        deal(greedy, np.repeat(np.arange(4), 30), 5)


def test_pathological_deals_whole_shards() -> None:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(8), 25))
    parts = deal(make("pathological", xi=2), labels, 4)
    assert all(len(part) == 50 and len(np.unique(labels[part])) <= 2 for part in parts)
    with pytest.raises(InputError, match="without any"):
        deal(make("pathological", xi=1), np.array([0, 1]), 3)


def test_imbalanced_sizes() -> None:
    labels = np.zeros(200, int)
    assert [len(part) for part in deal(make("imbalanced", kappa=0.35, m=2), labels, 5)] == [
        70,
        70,
        20,
        20,
        20,
    ]
    assert [len(part) for part in deal(make("imbalanced", kappa=0.8, m=1), labels, 2)] == [160, 40]
    with pytest.raises(InputError, match=r"more peers than its m=2"):
        deal(make("imbalanced", kappa=0.35, m=2), labels, 2)
    with pytest.raises(ValidationError, match="nothing for the others"):
        make("imbalanced", kappa=0.5, m=2)


def test_quantity_mixes_labels_and_varies_sizes() -> None:
    labels = np.tile(np.arange(5), 400)
    parts = deal(make("quantity", delta=0.5), labels, 4)
    assert np.ptp([len(part) for part in parts]) > 200
    largest = max(parts, key=len)
    assert np.bincount(labels[largest]).min() > 0.15 * len(largest)


def test_dirichlet_shuffles_a_class_before_it_draws_the_shares() -> None:
    # The other order would give other shares from the same seed; this one gives the published ring costs.
    labels = np.zeros(1000, int)
    rng = np.random.default_rng(7)
    rng.shuffle(np.arange(1000))
    shares = rng.dirichlet([5.0] * 3)
    sizes = [len(part) for part in deal(Dirichlet(kind="dirichlet", alpha=5.0), labels, 3, seed=7)]
    assert sizes[:2] == [int(1000 * share) for share in shares[:2]]


ADAPTER: TypeAdapter[Partition] = TypeAdapter(AnyPartition)


def test_kind_is_iid_when_not_given() -> None:
    assert ADAPTER.validate_python({}) == Iid()
    assert ADAPTER.validate_python({"kind": "dirichlet", "alpha": 0.1}) == Dirichlet(kind="dirichlet", alpha=0.1)


def test_fractions_can_be_given_in_a_file() -> None:
    content = '{"kind": "label-skew", "k": 2, "fractions": [0.3, 0.2, 0.03]}'
    given = ADAPTER.validate_json(content, strict=True)
    assert given == LabelSkew(kind="label-skew", k=2, fractions=(0.3, 0.2, 0.03))


@pytest.mark.parametrize("fractions", ["[0.5, 0.2]", "[0.5, 0.2, -0.1]", '[0.5, 0.2, "0.1"]', "0.5"])
def test_wrong_fractions_are_refused(fractions: str) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_json(f'{{"kind": "label-skew", "k": 2, "fractions": {fractions}}}', strict=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "dirichlet"},
        {"kind": "dirichlet", "alpha": 0},
        {"kind": "dirichlet", "alpha": float("nan")},
        {"kind": "iid", "alpha": 1},
        {"kind": "nonsense"},
        {"kind": "label-skew", "k": 0},
        {"kind": "pathological", "xi": 1.5},
        "dirichlet",
    ],
)
def test_wrong_settings_are_refused(wrong: object) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(wrong)


def test_every_split_says_where_it_comes_from() -> None:
    papers = ("FIRMA", "CYCle", "McMahan", "Li et al.")
    assert all(any(paper in str(kind.__doc__) for paper in papers) for kind in PARTITIONS.values())

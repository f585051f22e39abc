"""What peers declare to each other: the vectors and records that may travel, and what their data must agree in."""

import pytest

from peer.learning.data.samples import Names
from peer.learning.model.layout import ModelPart
from peer.learning.model.shape_check import Example
from peer.learning.model.zoo import build
from peer.network.wire.frames import MAX_DOUBLES
from peer.network.wire.manifest import Manifest, PayloadSpec
from peer.protocols.declarations import MAX_NUMBERS, Declarations, Share
from peer.protocols.fibfl import FibFL
from peer.runtime.manifest import build_manifest

UNNAMED = Names()


def declared(classes: int, names: Names = UNNAMED) -> Manifest:
    return build_manifest(FibFL().declarations(5), build("mlp", Example.zeros((4,), classes), seed=1), 5, 3, names)


def test_columns_in_another_order_and_classes_of_other_names_are_other_data() -> None:
    abcd, cats = tuple("abcd"), ("cat", "dog")
    first = declared(2, Names(abcd, cats))
    assert first.digest == declared(2, Names(abcd, cats)).digest
    assert first.data == (
        *("4 columns", "2 classes", "column 1 `a`", "column 2 `b`", "column 3 `c`", "column 4 `d`"),
        *("class 0 `cat`", "class 1 `dog`"),
    )
    for other in (Names(tuple("abdc"), cats), Names(abcd, cats[::-1]), Names(abcd), UNNAMED):
        assert declared(2, other).payloads == first.payloads
        assert declared(2, other).digest != first.digest


def test_peers_whose_extractors_agree_differ_by_their_classes() -> None:
    three, two, again = (declared(classes) for classes in (3, 2, 3))
    assert three.payloads == two.payloads, "a head of another size stays at home in FibFL"
    assert three.digest != two.digest
    assert three.digest == again.digest


def payload(share: Share) -> PayloadSpec:
    """In the manifest of a protocol that declares only this."""
    return build_manifest(
        Declarations("own", (share,), ()), build("mlp", Example.zeros((4,), 3), seed=1), 5, 3, UNNAMED
    ).payloads[0]


@pytest.mark.parametrize("like", ["model", "head"])
def test_bytes_that_hold_a_head_are_the_heads_from_the_first_to_the_last(like: ModelPart) -> None:
    """Where it lies in them nobody can say: half precision and ciphertexts have other places."""
    declared = payload(Share("update", bytes=True, like=like, size=1000))
    assert (declared.size, declared.head, declared.tensors) == (1000, (0, 1000), ())
    assert declared.head_bytes(0, 1000) == 1000
    unsized = payload(Share("update", bytes=True, like=like))
    assert unsized.head == (0, unsized.size) == (0, payload(Share("model")).size), "as long as the model"


def test_a_head_ends_with_the_vector_that_holds_it() -> None:
    whole, head = payload(Share("model")), payload(Share("head"))
    assert whole.head == (whole.size - head.size, whole.size)
    assert head.head == (0, head.size) == (0, 129 * 3)
    cut = payload(Share("update", like="model", size=whole.size - 7))
    assert cut.head == (whole.size - head.size, whole.size - 7)
    assert payload(Share("update", like="model", size=10)).head == (10, 10)
    assert payload(Share("update", like="extractor")).head == (0, 0)


def test_as_many_numbers_can_be_declared_as_a_frame_takes() -> None:
    assert MAX_NUMBERS == MAX_DOUBLES


def test_a_vector_of_every_third_round_is_refused_in_the_others() -> None:
    declared = payload(Share("gradient", like="model", rounds=range(1, 6, 3)))
    assert [round for round in range(8) if declared.travels(round)] == [1, 4]


def test_rounds_ascend() -> None:
    with pytest.raises(ValueError, match="`model`: rounds ascend"):
        Share("model", rounds=range(5, 0, -1))

"""What peers declare to each other: the vectors and records that may travel, and what their data must agree in."""

from peer.learning.data.samples import Names
from peer.learning.model.zoo import build
from peer.network.wire.manifest import Manifest
from peer.protocols.fibfl import FibFL
from peer.runtime.manifest import manifest

UNNAMED = Names()


def declared(classes: int, names: Names = UNNAMED) -> Manifest:
    return manifest(FibFL().declarations(5), build("mlp", (4,), classes, seed=1), 5, 3, names)


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

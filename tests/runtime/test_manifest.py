"""What peers declare to each other: the vectors and records that may travel, and what their data must agree in."""

from peer.learning.model.zoo import build
from peer.protocols.fibfl import FibFL
from peer.runtime.manifest import manifest


def test_peers_whose_extractors_agree_differ_by_their_classes() -> None:
    three, two, again = (
        manifest(FibFL().declarations(5), build("mlp", (4,), classes, seed=1), 5, 3) for classes in (3, 2, 3)
    )
    assert three.payloads == two.payloads, "a head of another size stays at home in FibFL"
    assert three.digest != two.digest
    assert three.digest == again.digest

"""Which data are a peer's own: by its file, by its entry in the ring, or by `{id}` in the federation's path."""

from peer.learning.data.sources import Source
from peer.spec.federation import Spec


def own_data(id: str, spec: Spec, given: Source | None = None) -> Source | None:
    """A peer's own data; None where it takes its part of the federation's.

    given: what its own file says, before which the ring's entry has no say.
    """
    listed = next(member.data for member in spec.ring if member.id == id)
    if own := given or listed:
        return own.of_peer(id)
    if spec.data.names_peers:
        # What is every peer's is done as such.
        return spec.data.of_peer(id).model_copy(update={"drift": (), "standardize": None})
    return None

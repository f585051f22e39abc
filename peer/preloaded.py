"""What every peer imports and builds in its first moments: once, by a process whose forks become peers.

What a peer does of it by itself costs CPU, and memory that all could share: 0.4 of 4 GiB where there are a hundred.
"""

import encodings.idna  # noqa: F401  (asyncio looks it up by name for the first address)
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import ruamel.yaml.mergevalue  # noqa: F401  (as ruamel.yaml does for the first document)

import peer.cli
import peer.runtime.peer_process
import peer.runtime.setup  # noqa: F401
from peer.errors import InputError
from peer.spec.agreement import user_code
from peer.spec.document import Document
from peer.spec.federation import Spec
from peer.spec.loading import read_peer
from peer.spec.peer import PeerConfig
from peer.telemetry import events
from peer.versions import release

for settings in (Spec, PeerConfig):
    settings.model_rebuild()
for event in (
    *(events.Started, events.StateChanged, events.Waiting, events.LinkChanged, events.DataSummary),
    *(events.RingOrdered, events.RoundDone, events.BytesPassed, events.Done),
):
    events.adapter(event.name)
release()  # each peer tells it: what is imported for that takes 2 MB


def rehearse(config: str) -> None:
    """Read one peer's settings: its protocol is then imported, and the federation's file parsed, for all.

    The user's own code is left to the peers, as it may do anything, and so are complaints about the settings.
    """
    path = Path(config)
    with suppress(InputError):
        ours = Document.read(path).content
        if ours.get("tls"):
            import_module("peer.network.transport.tls")  # loads X.509
        federation = Document.read(path.parent.resolve() / str(ours.get("federation"))).content
        if not user_code(ours) and not user_code(federation):
            read_peer(path)

"""What every peer imports and builds in its first moments: imported once, by a process whose forks become peers.

What a peer does of it by itself costs CPU, and memory that all could share: 0.4 of 4 GiB where there are a hundred.
"""

import encodings.idna  # noqa: F401  (asyncio looks it up by name for the first address)

import ruamel.yaml.mergevalue  # noqa: F401  (as ruamel.yaml does for the first document)
from pydantic import BaseModel

import peer.cli
import peer.network.transport.tls
import peer.runtime.peer_process
import peer.runtime.setup
import peer.runtime.subscribers
import peer.spec.loading  # noqa: F401
from peer.protocols.registry import PROTOCOLS, protocol_class
from peer.spec.federation import Spec
from peer.spec.peer import PeerConfig

MODELS: tuple[type[BaseModel], ...] = (Spec, PeerConfig, *map(protocol_class, PROTOCOLS))
for settings in MODELS:
    settings.model_rebuild()

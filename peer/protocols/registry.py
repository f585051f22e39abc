"""The protocols there are, by name; a user's own is `module:Name`."""

from peer.learning.tasks import Task
from peer.plugins import load_class
from peer.protocols.base import Protocol

PROTOCOLS = {
    "fibfl": "peer.protocols.fibfl:FibFL",
    "fibfl+": "peer.protocols.fibfl_plus:FibFLPlus",
    "fibfl++": "peer.protocols.fibfl_plus_plus:FibFLPlusPlus",
    "rdfl": "peer.protocols.rdfl:RDFL",
    "fedavg": "peer.protocols.fedavg:FedAvg",
    "fedprox": "peer.protocols.fedprox:FedProx",
    "feddyn": "peer.protocols.feddyn:FedDyn",
    "scaffold": "peer.protocols.scaffold:Scaffold",
    "ri-fedavg": "peer.protocols.ri_fedavg:RIFedAvg",
    "fedrep": "peer.protocols.fedrep:FedRep",
    "dp-fedavg": "peer.protocols.dp_fedavg:DPFedAvg",
    "fedisp": "peer.protocols.fedisp:FedISP",
    "def-kt": "peer.protocols.def_kt:DefKT",
    "gossip-sgd": "peer.protocols.gossip_sgd:GossipSGD",
    "vpdl": "peer.protocols.vpdl:VPDL",
    "cycle-pdl": "peer.protocols.cycle_pdl:CyclePDL",
    "cycle-gossip": "peer.protocols.cycle_gossip:CycleGossip",
    "flexifed": "peer.protocols.flexifed:FlexiFed",
    "cgsv": "peer.protocols.cgsv:CGSV",
    "rffl": "peer.protocols.rffl:RFFL",
    "cffl": "peer.protocols.cffl:CFFL",
    "ring-median": "peer.protocols.ring_median:RingMedian",
    "hearth": "peer.protocols.hearth:Hearth",
    "solo": "peer.protocols.solo:Solo",
}


def suited(task: Task, peers: int) -> dict[str, type[Protocol]]:
    """The protocols that so many peers can use for a task, by name."""
    classes = {name: protocol_class(name) for name in PROTOCOLS if peers == 1 or name != "solo"}
    return {name: one for name, one in classes.items() if one.min_peers <= peers and not one.lacks(task)}


def protocol_class(name: str) -> type[Protocol]:
    """The class called `name`, or the user's `module:Name`; KeyError when the name is neither."""
    return load_class(name if ":" in name else PROTOCOLS[name], Protocol)

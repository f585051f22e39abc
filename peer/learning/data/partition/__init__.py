"""Data splits: which samples of one common data set each peer holds. Equal generators give equal splits."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from peer.learning.data.partition.base import Partition
from peer.learning.data.partition.even import Homogeneous, Iid
from peer.learning.data.partition.label_skew import Dirichlet, LabelSkew, Pathological
from peer.learning.data.partition.quantity_skew import Imbalanced, Quantity

__all__ = [
    "PARTITIONS",
    "AnyPartition",
    "Dirichlet",
    "Homogeneous",
    "Iid",
    "Imbalanced",
    "LabelSkew",
    "Partition",
    "Pathological",
    "Quantity",
]

PARTITIONS: dict[str, type[Partition]] = {
    "iid": Iid,
    "homogeneous": Homogeneous,
    "dirichlet": Dirichlet,
    "label-skew": LabelSkew,
    "pathological": Pathological,
    "imbalanced": Imbalanced,
    "quantity": Quantity,
}


def _iid_unless_said(value: Any) -> Any:
    return {"kind": "iid", **value} if isinstance(value, dict) else value


AnyPartition = Annotated[
    Annotated[
        Iid | Homogeneous | Dirichlet | LabelSkew | Pathological | Imbalanced | Quantity,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_iid_unless_said),
]
"""The `partition` block of a data set; `kind` is iid when not given."""

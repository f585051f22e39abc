"""The only module that imports torchvision, and only where an image data set or one of its models needs it.

PyPI's torchvision is compiled against CUDA. Beside a CPU-only torch its compiled half cannot be loaded, and
its import then fails at the operators `nms` and `qnms`, for which it wants to register shape rules. Declaring
these two without an implementation is enough: data sets, transforms and models are plain Python and work;
`torchvision.ops.nms` and `torchvision.io.decode_image`, which nothing here needs, still fail when called.
With a matching pair of torch and torchvision the plain import succeeds and none of this is entered.
"""

import sys
from types import ModuleType

import torch

from peer.errors import InputError, optional

_SCHEMAS = {name: f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")}
# torch forgets an operator together with the object that declared it, so these live as long as the process.
_declared: list[torch.library.Library] = []


def torchvision() -> ModuleType:
    """The imported torchvision; InputError when it is not installed or cannot work with this torch."""
    try:
        try:
            return _import()
        except RuntimeError as error:
            if "operator torchvision::" not in str(error):
                raise
            _forget_half_import()
            _declare_missing_operators()
            return _import()
    except RuntimeError as error:
        raise InputError(
            f"the installed torchvision does not work with torch {torch.__version__} ({error}); "
            "install the torchvision release that belongs to this torch"
        ) from error


def _import() -> ModuleType:
    found: ModuleType = optional("torchvision", "this data set or model", "torchvision", "vision")
    return found


def _forget_half_import() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


def _declare_missing_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(schema)  # type: ignore[no-untyped-call]
    _declared.append(library)

"""Tensors by name that outlive what made them, since they are part of a checkpoint."""

from collections import UserDict
from typing import Any, ClassVar

from torch import Tensor


class Kept(UserDict[str, Tensor]):
    """TypeError at once for what is no tensor."""

    called: ClassVar[str] = "state"
    """As the user's code has it."""

    def __setitem__(self, name: str, value: Tensor) -> None:
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise TypeError(
                f"{self.called}[{name!r}] = {type(value).__name__}: only tensors are kept, by a name; "
                "write torch.tensor(...) and read it with .item()"
            )
        super().__setitem__(name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "data":
            raise AttributeError(
                f"{self.called} keeps tensors by a name in brackets: write {self.called}[{name!r}] = ..."
            )
        super().__setattr__(name, value)

    def __missing__(self, name: str) -> Tensor:
        raise KeyError(
            f"{self.called} keeps nothing as {name!r}; write {self.called}[{name!r}] = ... before, as in `start`"
        )

    def why_not_apart(self, model: Tensor) -> str | None:
        """Which of them shares memory with another or with the model's vector; None if each has its own.

        After a crash each name holds a tensor of its own: what shared memory before would then part ways in silence.
        """
        seen = {model.untyped_storage().data_ptr(): "the model"}
        for name, tensor in self.items():
            own = f"{self.called}[{name!r}]"
            other = seen.setdefault(tensor.untyped_storage().data_ptr(), own)
            if tensor.numel() and other != own:
                return f"keeps in {own} a view of {other}; write .clone(), or a crash would change the result"
        return None

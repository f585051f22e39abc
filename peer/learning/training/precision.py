"""Mixed precision: in which dtype forward and backward passes multiply, while the model remains float32."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class MixedPrecision:
    """torch's autocast, and for float16 its scaler of the loss, which lives through all phases."""

    def __init__(self, name: str, device: torch.device) -> None:
        """`name`: float32, which changes nothing, bfloat16 or float16."""
        self._dtype, self._device = DTYPES.get(name), device
        self.scaler = torch.amp.GradScaler(device.type) if name == "float16" else None

    def forward(self) -> AbstractContextManager[object]:
        """The block in which the model answers and the loss is taken."""
        return torch.autocast(self._device.type, self._dtype) if self._dtype else nullcontext()

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss as the backward pass begins with it."""
        scaled: Tensor = self.scaler.scale(loss) if self.scaler else loss
        return scaled

    def unscale(self, optimiser: torch.optim.Optimizer, gradient: Tensor) -> bool | Tensor:
        """Take the scale out of the gradient; whether it is finite, perhaps of shape (): who reads that waits for it.
        The optimiser leaves out a step that is not."""
        if self.scaler is None:
            return True
        self.scaler.unscale_(optimiser)
        return torch.isfinite(gradient.sum())

    def step(self, optimiser: torch.optim.Optimizer) -> None:
        if self.scaler is None:
            optimiser.step()
        else:
            self.scaler.step(optimiser)
            self.scaler.update()

    def state(self) -> dict[str, Tensor]:
        """The scale and for how many steps it has held, float64 (2,); nothing where nothing is scaled."""
        if self.scaler is None:
            return {}
        now = self.scaler.state_dict()
        return {"scale": torch.tensor([now["scale"], now["_growth_tracker"]], dtype=torch.float64)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        if self.scaler and "scale" in state:
            scale, held = state["scale"].tolist()
            self.scaler.load_state_dict(self.scaler.state_dict() | {"scale": scale, "_growth_tracker": int(held)})

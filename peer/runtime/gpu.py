"""How busy a GPU is, as NVML tells it, through the package `nvidia-ml-py` (the extra `gpu`)."""

import torch


def busy(device: torch.device) -> float | None:
    """The share of the last moments in which a CUDA device worked, for whichever process, from 0 to 1.

    None without the package, with a PyTorch before 2.5, or where the driver does not tell: on a part of a GPU (MIG).
    """
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    # By its own number: NVML knows nothing of CUDA_VISIBLE_DEVICES, and may count in another order.
    number = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{number}")
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except pynvml.NVMLError:
        return None

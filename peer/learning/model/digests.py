"""Fingerprints of named tensors."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def content_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 in hex over the tensors' bytes alone, contiguous and little-endian, in the order of the sorted names."""
    digest = hashlib.sha256()
    for _, tensor in sorted(tensors.items()):
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def named_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 in hex over name, shape, dtype and bytes of each tensor, in the order of the sorted names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\n{tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    if plain.is_floating_point() and plain.dtype not in (torch.float16, torch.float32, torch.float64):
        plain = plain.view(torch.int16 if plain.itemsize == 2 else torch.uint8)  # numpy has no such type
    array = plain.numpy()
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()

"""Codecs of a user's own: how they are written, and how what arrives is judged before anybody uses it."""

from abc import abstractmethod
from typing import NamedTuple

import torch
import xxhash
from torch import Generator, Tensor

from peer.settings import Settings


class Codec(Settings):
    """How vectors travel: `wire: {kind: codec, name: "module:Name"}`, or by an entry point of `dfl.codecs`.

    A subclass's fields are its settings. Extractor and head are encoded each by itself. What a message loses is added
    to the next vector of that name (error feedback: Seide et al. 2014). A codec keeps nothing from one call to the
    next: it is called again in rounds that are repeated, and has to give the same bytes.
    """

    @abstractmethod
    def length(self, values: int) -> int:
        """The bytes that any vector of so many values takes, 1 or more; messages of another length are refused."""

    @abstractmethod
    def encode(self, vector: Tensor, generator: Generator) -> Tensor:
        """The bytes, uint8 (length(n),), of a vector, float32 (n,), finite, on the CPU.

        generator: what is drawn at random is drawn from this; it is seeded by the vector.
        """

    @abstractmethod
    def decode(self, content: Tensor, values: int) -> Tensor:
        """The vector, float32 (values,), of these bytes, uint8 (length(values),), on the CPU.

        content: from another peer, which may lie: any bytes. Raise ValueError for what `encode` never gives; what
        decodes to NaN or infinity is refused without that. The message is then refused and its sender named. It runs
        while nothing else does, heartbeats included, and must not draw.
        """


class NoVectorError(ValueError):
    """What a codec gives is no vector of the right size."""


class CodedBlock(NamedTuple):
    """The form of a block: `size` consecutive values, one at least, as bytes of a codec's."""

    size: int
    codec: Codec

    @property
    def length(self) -> int:
        """The bytes of the whole block."""
        return self.codec.length(self.size)

    def pack(self, values: Tensor) -> Tensor:
        """The bytes, uint8 (length,), of float32 (size,), finite; ValueError if the codec gives something else."""
        generator = Generator().manual_seed(xxhash.xxh3_64_intdigest(values.numpy().data))
        with torch.no_grad():
            content = self.codec.encode(values.clone(), generator)
        if not isinstance(content, Tensor) or content.dtype != torch.uint8 or content.shape != (self.length,):
            given = f"{content.dtype} {tuple(content.shape)}" if isinstance(content, Tensor) else type(content).__name__
            raise ValueError(f"`encode` gives {given}; by `length` it is torch.uint8 ({self.length},)")
        return content.contiguous()

    def decode(self, content: memoryview) -> Tensor:
        """The values, float32 (size,), finite; NoVectorError if the codec gives anything else, or what it raises."""
        given = torch.frombuffer(bytearray(content), dtype=torch.uint8)  # a copy, as a codec may write into it
        with torch.no_grad():
            found = self.codec.decode(given, self.size)
        if not isinstance(found, Tensor) or (found.dtype, found.layout) != (torch.float32, torch.strided):
            raise NoVectorError("`decode` gives something else than float32 values")
        if found.shape != (self.size,) or found.device.type != "cpu":
            raise NoVectorError(f"`decode` gives something else than {self.size} values on the CPU")
        if not bool(torch.isfinite(found).all()):
            raise NoVectorError("`decode` gives values that are not finite")
        return found.detach()

    def unpack(self, content: memoryview) -> Tensor:
        """The values; ValueError if the bytes, which are untrusted, are no such block."""
        try:
            return self.decode(content)
        except (NoVectorError, MemoryError):
            raise
        except (Exception, SystemExit) as error:  # told to the sender, so without what this peer's code and paths are
            raise ValueError(f"`decode` raises {type(error).__name__}") from error

    def rehearse(self) -> None:
        """ValueError unless vectors of this size, drawn and of zeros, arrive, more of them than is lost, and the same
        each time."""
        if not isinstance(self.length, int) or self.length < 1:
            raise ValueError(f"`length` gives {self.length!r} for {self.size} values; it is a whole number from 1 up")
        for vector in (torch.randn(self.size, generator=Generator().manual_seed(0)), torch.zeros(self.size)):
            content = self.pack(vector)
            if not torch.equal(content, self.pack(vector)):
                raise ValueError("`encode` gives other bytes the second time; draw from its `generator` alone")
            found = self.decode(content.numpy().data)
            if not torch.equal(found, self.decode(content.numpy().data)):
                raise ValueError("`decode` gives other values the second time; it must not draw")
            # What is lost is added to the next vector: it would grow without end.
            if bool(vector.any()) and (found - vector).norm() >= vector.norm():
                raise ValueError("it loses more of a vector than it keeps; a codec comes nearer to it than zeros are")

"""A GPU without room ends the peer with one sentence of advice. There is no GPU: torch's errors are raised by hand."""

import json

import pytest
from real_peers import Build

ADVICE = "set a smaller `batch_size`, run fewer peers on this GPU"
FULL = '''
from typing import ClassVar
import torch
from peer import Protocol
from peer import SGD, Phase

SAID = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 11.00 MiB is "
    "free. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF"
)
def allocate():
    raise torch.cuda.OutOfMemoryError(SAID)

class Base(Protocol):
    """Alone: whoever had to wait for one that has ended would wait for ever."""
    paper, min_peers = "none", 1
    graph: ClassVar = "none"
    def shares(self, rounds): return ()
    def local(self): return (Phase("model", 1, SGD()),)

class InTheThread(Base):
    """Where training runs."""
    async def round(self, peer):
        await peer.compute(allocate)

class InTheLoop(Base):
    """Where vectors are blended."""
    async def round(self, peer):
        raise RuntimeError("CUDA error: out of memory\\nCompile with `TORCH_USE_CUDA_DSA`")
'''


@pytest.mark.parametrize(
    ("protocol", "said"),
    [("InTheThread", "which 11.00 MiB is free)"), ("InTheLoop", "(CUDA error: out of memory)")],
)
def test_a_full_gpu_ends_with_advice(federation: Build, protocol: str, said: str) -> None:
    made = federation("fibfl", 3)
    (made.directory / "full.py").write_text(FULL)
    spec = json.loads((made.directory / "federation.yaml").read_text())
    (made.directory / "federation.yaml").write_text(json.dumps({**spec, "protocol": f"full:{protocol}"}))
    made.start()
    assert made.wait() == dict.fromkeys(made.ids, 1)
    for id in made.ids:
        last = made.log(id).splitlines()[-1]
        assert last.startswith("dfl-peer: the GPU's memory is full (CUDA ")
        assert said in last
        assert ADVICE in last
        assert made.events(id, "failed")[-1]["message"] in last
        assert "Traceback" not in made.log(id)

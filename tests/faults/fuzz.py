"""Coverage-guided fuzzing of what strangers' bytes reach: frames, hellos, beats, and the reception behind them.

    python -m tests.faults.fuzz --seconds 60

With atheris where it is installed; without it, hypothesis draws the bytes. Any exception but a refusal is a bug.
"""

import argparse
import asyncio
import importlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

SEEDS = 8
"""Kinds of input; the first byte chooses."""


def targets() -> Callable[[bytes], None]:
    """Imports what is fuzzed (atheris watches the import) and returns the function that takes the bytes."""
    from strangers import Door, frame, hello, resealed  # noqa: F401

    from faults.quantisers import Picky
    from peer.network.limits import Limits
    from peer.network.wire.codec import CodedBlock
    from peer.network.wire.frames import BadFrameError, decode
    from peer.network.wire.manifest import NotDeclaredError, TopKBlock, unpack_blocks
    from peer.network.wire.messages import UntrustedDecoder

    foreign = UntrustedDecoder(Limits(), 3)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    async def offered(data: bytes) -> None:
        door = Door()
        middle = len(data) // 2
        for part in (data, data[:middle], data[middle:], frame(), data):
            with suppress(BadFrameError, NotDeclaredError, TimeoutError):
                await asyncio.wait_for(door.offer(resealed(part)), 0.01)
        assert door.bytes_held <= 4 * 4 * 24

    async def announced(data: bytes) -> None:
        door = Door()
        with suppress(BadFrameError):
            door.receiver._identity.check(foreign.hello(data), None)

    def one(data: bytes) -> None:
        kind, rest = data[:1] or b"\0", data[1:]
        match kind[0] % SEEDS:
            case 0:
                with suppress(BadFrameError):
                    decode(rest)
            case 1:
                with suppress(BadFrameError):
                    decode(resealed(rest))
            case 2:
                loop.run_until_complete(offered(rest))
            case 3:
                loop.run_until_complete(announced(rest))
            case 4:
                for read in (foreign.answer, foreign.reply):
                    with suppress(BadFrameError):
                        read(rest)
            case 5:
                with suppress(BadFrameError):
                    foreign.beat(rest)
            case 6:
                blocks = [TopKBlock(256 * rest[0] + rest[1], rest[2]), TopKBlock(9, 2)] if len(rest) > 2 else []
                with suppress(ValueError):
                    for block, (places, values) in zip(
                        blocks, unpack_blocks(blocks, memoryview(rest[3:])), strict=True
                    ):
                        assert len(places) == len(values) == block.kept
                        assert not block.kept or 0 <= places[0] <= places[-1] < block.size
            case 7:
                coded = [CodedBlock(9, Picky())]
                with suppress(ValueError):
                    for values in unpack_blocks(coded, memoryview(rest[:13])):
                        assert values.shape == (9,)
                        assert bool(values.isfinite().all())

    return one


def corpus(directory: Path) -> None:
    """Honest inputs to begin with."""
    from strangers import frame, hello

    honest = [frame(), frame(scalars=()), frame([1.0] * 3, round=2, step=70_000, offset=4), hello(), hello("right")]
    for kind in range(SEEDS):
        for number, data in enumerate(honest):
            (directory / f"{kind}-{number}").write_bytes(bytes([kind]) + data)
    for name, head, some in (("bitmap", bytes([0, 16, 3]), b"\x15\0"), ("numbers", bytes([9, 9, 1]), b"\1\2\0\0")):
        values = b"\0\0\x80\x3f"
        content = some + values * head[2] + b"\x81\0" + 2 * values
        (directory / f"6-{name}").write_bytes(bytes([6]) + head + content)


def guided(seconds: int) -> None:
    """Runs until the time is over or something is found; does not return."""
    atheris = importlib.import_module("atheris")
    # The pause at exit is libFuzzer's; torch is not to be instrumented.
    with atheris.instrument_imports(include=["peer.network", "strangers"]):
        one = targets()
    directory = Path(tempfile.mkdtemp(prefix="fuzz-"))
    corpus(directory)
    arguments = [
        sys.argv[0],
        f"-max_total_time={seconds}",
        "-max_len=512",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
    ]
    atheris.Setup([*arguments, f"-artifact_prefix={directory}{os.sep}", str(directory)], one)
    atheris.Fuzz()


def drawn(seconds: int) -> int:
    """Fuzz with bytes that hypothesis draws."""
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    one, end, count = targets(), time.monotonic() + seconds, 0

    @settings(max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=400))
    def many(data: bytes) -> None:
        nonlocal count
        count += 1
        one(data)

    while time.monotonic() < end:
        many()
    print(f"{count} inputs, nothing found")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=60)
    seconds = parser.parse_args().seconds
    if importlib.util.find_spec("atheris"):
        guided(seconds)
    print("atheris is not installed: the inputs are drawn without regard to coverage")
    return drawn(seconds)


if __name__ == "__main__":
    sys.exit(main())

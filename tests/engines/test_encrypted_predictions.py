"""`predictions: encrypted`: real CKKS, from single ciphertexts to federations that are killed."""

import asyncio
import json
import os
import resource
import signal
import struct
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from real_peers import Build
from safetensors.torch import load_file

from launcher.plan import plan
from peer.errors import InputError
from peer.learning.encryption import ckks, square_mlp
from peer.learning.encryption.square_mlp import (
    ANSWER_BYTES,
    CONTEXT_BYTES,
    FRESH_BYTES,
    KEY_BYTES,
    SLOTS,
    Encrypted,
    SquareMLP,
    decrypt,
    encrypt,
    evaluate,
)
from peer.learning.encryption.worker import Worker
from peer.protocols.base import Peer
from peer.protocols.blocks import predictions
from peer.runtime.dry_run import dry_run_figures
from peer.runtime.in_process import run_in_process
from peer.runtime.runtime import Runtime
from peer.spec.loading import load_spec
from peer.views.view import STALENESS_BOUND

tenseal = pytest.importorskip("tenseal")
FAULTS = Path(__file__).parents[1] / "faults"
PROTOCOL = {"name": "vpdl", "lam": 2, "lr": 0.05, "lr_step": 9, "batch_size": 8, "warmup_epochs": 3}


@pytest.fixture(scope="module")
def inputs() -> torch.Tensor:
    return torch.rand(40, 6, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def encrypted(inputs: torch.Tensor) -> Encrypted:
    return encrypt(inputs)


@pytest.fixture(scope="module")
def model() -> SquareMLP:
    """One weight is 0 and one too small to be encoded."""
    generator = torch.Generator().manual_seed(2)
    shapes = ((5, 6), (5,), (3, 5), (3,))
    made = SquareMLP(*(torch.empty(shape).uniform_(-1, 1, generator=generator) for shape in shapes))
    made.hidden[0] = 0
    made.head[1, 2] = 1e-20
    return made


def test_what_is_decrypted_is_what_the_model_says(inputs: torch.Tensor, encrypted: Encrypted, model: SquareMLP) -> None:
    answer = evaluate(model, encrypted.context, encrypted.inputs)
    hidden = (inputs.double().numpy() @ model.hidden.double().numpy().T + model.hidden_bias.double().numpy()) ** 2
    plain = hidden @ model.head.double().numpy().T + model.head_bias.double().numpy()
    assert abs(decrypt(encrypted.key, answer, 40).numpy() - plain).max() < 1e-2
    assert max(map(len, encrypted.inputs)) < FRESH_BYTES
    assert max(map(len, answer)) < ANSWER_BYTES
    assert len(encrypted.context) < CONTEXT_BYTES
    assert len(encrypted.key) < KEY_BYTES


def test_the_same_evaluation_has_the_same_bytes(encrypted: Encrypted, model: SquareMLP) -> None:
    first, second = (evaluate(model, encrypted.context, encrypted.inputs) for _ in range(2))
    assert first == second


def test_who_evaluates_cannot_decrypt(encrypted: Encrypted, model: SquareMLP) -> None:
    context = tenseal.context_from(encrypted.context)
    assert not context.is_private()
    assert not context.has_secret_key()
    for one in (encrypted.inputs[0], evaluate(model, encrypted.context, encrypted.inputs)[0]):
        with pytest.raises(ValueError, match="secret_key"):
            tenseal.ckks_vector_from(context, one).decrypt()
        with pytest.raises(ValueError, match="secret_key"):
            decrypt(encrypted.context, [one], 40)


def test_another_key_gives_other_numbers(inputs: torch.Tensor, encrypted: Encrypted, model: SquareMLP) -> None:
    answer = evaluate(model, encrypted.context, encrypted.inputs)
    other = encrypt(inputs)
    assert other.inputs[0] != encrypted.inputs[0]
    assert (decrypt(other.key, answer, 40) - model.logits(inputs)).abs().median() > 1


@pytest.mark.parametrize("content", [b"abc", b"\x00" * 100])
def test_what_is_no_ciphertext_is_refused(encrypted: Encrypted, model: SquareMLP, content: bytes) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        decrypt(encrypted.key, [content], 40)
    with pytest.raises((ValueError, RuntimeError)):
        evaluate(model, encrypted.context, [content] * 6)
    with pytest.raises((ValueError, RuntimeError)):
        evaluate(model, content, encrypted.inputs)


def test_an_answer_to_other_samples_is_refused(encrypted: Encrypted, model: SquareMLP) -> None:
    answer = evaluate(model, encrypted.context, encrypted.inputs)
    with pytest.raises(ValueError, match=r"other than 39 samples"):
        decrypt(encrypted.key, answer, 39)
    with pytest.raises(ValueError, match=r"5 encrypted inputs"):
        evaluate(model, encrypted.context, encrypted.inputs[:5])


def test_more_samples_than_slots_are_refused() -> None:
    with pytest.raises(InputError, match=f"4,097 samples .* do not fit .* holds {SLOTS:,}"):
        encrypt(torch.zeros(4097, 2))


def test_the_disk_has_room_for_what_is_journalled(tmp_path: Path) -> None:
    """The inputs of round 1 and the answers of all rounds that may be replayed."""
    (tmp_path / "federation.yaml").write_text(json.dumps(content(9, "tiny:square", predictions="encrypted")))
    spec = load_spec(tmp_path / "federation.yaml", peers=3)
    made = plan(spec)
    journalled = dry_run_figures("peer0", made.dry_run_input("peer0")).journalled
    inputs = KEY_BYTES + CONTEXT_BYTES + 4 * FRESH_BYTES
    assert journalled > inputs + (STALENESS_BOUND + 2) * 2 * made.model.classes * ANSWER_BYTES


def content(rounds: int, model: str, **protocol: Any) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "model": model,
        "data": {"name": "tiny:data", "partition": {"kind": "dirichlet", "alpha": 1.0}},
        "protocol": {**PROTOCOL, **protocol},
        "trace": True,
        "code": str(FAULTS),
    }


def run(directory: Path, rounds: int = 3, model: str = "tiny:square", **protocol: Any) -> dict[str, Runtime]:
    """Three peers share 42 samples of four numbers."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "federation.yaml").write_text(json.dumps(content(rounds, model, **protocol)))
    spec = load_spec(directory / "federation.yaml", peers=3)
    return asyncio.run(run_in_process(spec, directory))


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Runtime]]:
    out = tmp_path_factory.mktemp("encrypted")
    return out, run(out, predictions="encrypted")


def test_the_models_are_those_of_plain_predictions(secret: tuple[Path, dict[str, Runtime]], tmp_path: Path) -> None:
    plain = run(tmp_path)
    for id, runtime in secret[1].items():
        torch.testing.assert_close(runtime.peer.model, plain[id].peer.model, atol=1e-2, rtol=0)


def test_cycle_is_the_same_whoever_computes(tmp_path: Path) -> None:
    settings = {"name": "cycle-pdl", "reputation_every": 2}
    plain = run(tmp_path / "plain", **settings)
    encrypted = run(tmp_path / "encrypted", predictions="encrypted", **settings)
    for id, runtime in encrypted.items():
        torch.testing.assert_close(runtime.peer.model, plain[id].peer.model, atol=1e-2, rtol=0)


def test_nobody_has_anybody_else_s_key(secret: tuple[Path, dict[str, Runtime]]) -> None:
    out, runtimes = secret
    keys = {id: runtime.peer.state["key"].numpy().tobytes() for id, runtime in runtimes.items()}
    assert all(tenseal.context_from(key).is_private() for key in keys.values())
    for id, runtime in runtimes.items():
        others = sorted(set(runtimes) - {id})
        assert sorted(runtime.peer.state) == [
            *(f"context/{k}" for k in others),
            *(f"inputs/{k}" for k in others),
            "key",
            "warm",
        ]
        for k in others:
            assert not tenseal.context_from(runtime.peer.state[f"context/{k}"].numpy().tobytes()).is_private()
            for path in (path for path in (out / id).rglob("*") if path.is_file()):
                assert keys[k][1000:1100] not in path.read_bytes(), path


def test_only_what_is_declared_leaves(secret: tuple[Path, dict[str, Runtime]]) -> None:
    for id in secret[1]:
        lines = [json.loads(line) for line in (secret[0] / id / "audit.jsonl").read_text().splitlines()]
        left = [{line["vector"] for line in record["sent"] if line["bytes"]} for record in lines]
        assert left == [set(), {"context", "inputs", "answers"}, {"answers"}, {"answers"}]
        assert sum(line["head_bytes"] for record in lines for line in record["sent"]) == 0


def test_what_was_sent_once_is_written_once(secret: tuple[Path, dict[str, Runtime]]) -> None:
    for id, runtime in secret[1].items():
        files = [*(secret[0] / id / "checkpoint").iterdir()]
        kept = sum(path.stat().st_size for path in files if path.name.startswith("kept-"))
        assert kept > sum(tensor.nbytes for tensor in runtime.peer.state.values())
        assert max(path.stat().st_size for path in files if path.name.startswith("round-")) < 10_000


@pytest.mark.parametrize("fault", ["once:1", "once:3", "mid-frame:9", "checkpoint:3"])
def test_killed_it_says_the_same_again(fault: str, federation: Build, tmp_path: Path) -> None:
    """Keys differ from run to run; a peer that had drawn others in its second life would be answered nonsense."""
    plain = run(tmp_path / "plain")
    spec = content(3, "tiny:square", predictions="encrypted")
    one = federation(spec.pop("protocol"), peers=3, **spec)
    one.env = {"peer1": {"FAULT": fault}}
    one.start()
    assert one.peers["peer1"].wait() == -signal.SIGKILL, one.log("peer1")
    one.env = {}
    one.start("peer1")
    assert one.wait() == dict.fromkeys(one.ids, 0), one.account()
    for id in one.ids:
        assert not one.events(id, "conflict", "refused")
        found = load_file(one.directory / id / "model.safetensors")
        for name, tensor in plain[id].setup.model.state().items():
            torch.testing.assert_close(found[name], tensor, atol=1e-2, rtol=0)


def test_too_many_samples_are_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(square_mlp, "SLOTS", 8)
    with pytest.raises(InputError, match="holds 8"):
        run(tmp_path, predictions="encrypted")


@pytest.mark.parametrize("model", ["tiny:model", "mlp"])
def test_another_model_is_refused(tmp_path: Path, model: str) -> None:
    with pytest.raises(InputError, match=r"take `model: {name: mlp-square}`, or"):
        run(tmp_path, model=model, predictions="encrypted")


HALF = b"\n\x01\x14\x19" + bytes(6) + b"\xd0\x41"
"""A vector of 20 samples in no ciphertext at all: TenSEAL reads beyond its memory."""


@pytest.mark.parametrize("wrong", [HALF, b"", b"\n\x00\x12\x00", HALF[:3] + b"\x12\x00" * 2 + HALF[3:]])
def test_what_is_no_single_ciphertext_never_reaches_tenseal(
    encrypted: Encrypted, model: SquareMLP, wrong: bytes
) -> None:
    with pytest.raises(ValueError, match="not a single ciphertext"):
        evaluate(model, encrypted.context, [encrypted.inputs[0], *[wrong] * 5])
    with pytest.raises(ValueError, match="not a single ciphertext"):
        decrypt(encrypted.key, [wrong] * 3, 40)


def test_a_context_of_other_parameters_is_refused(encrypted: Encrypted, model: SquareMLP) -> None:
    other = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 16384, coeff_mod_bit_sizes=[40, 30, 30, 30, 40], n_threads=1)
    other.global_scale = 2.0**30
    context = other.serialize(save_public_key=False, save_secret_key=False, save_galois_keys=False)
    with pytest.raises(ValueError, match="other parameters"):
        evaluate(model, context, encrypted.inputs)


def seal(kind: int, size: int) -> bytes:
    """What SEAL writes before `size` bytes: 0 they are as they are, 2 they are packed by zstd."""
    return b"\x5e\xa1\x10\x04\x03" + bytes([kind, 0, 0]) + struct.pack("<Q", 16 + size)


def packed(*pieces: bytes | int) -> bytes:
    """zstd of some bytes, and of so many zeros, 4 bytes for each 128 KiB of them."""
    blocks = [(0, piece) if isinstance(piece, bytes) else (1, piece) for piece in pieces]
    written = b"\x28\xb5\x2f\xfd\x00\x58"
    for kind, piece in blocks:
        for length in [len(piece)] if isinstance(piece, bytes) else [1 << 17] * (piece >> 17):
            content = piece if isinstance(piece, bytes) else b"\0"
            written += (kind << 1 | length << 3).to_bytes(3, "little") + content
    return written + b"\1\0\0"


def field(number: int, content: bytes) -> bytes:
    """A field of protobuf with bytes in it."""
    length, written = len(content), bytes([number << 3 | 2])
    while length > 0x7F:
        written, length = written + bytes([length & 0x7F | 0x80]), length >> 7
    return written + bytes([length]) + content


def bomb(keys: int) -> bytes:
    """A context of the right parameters with so many relinearisation keys of zeros, 2.6 MB each; it needs one."""
    parameters = bytes.fromhex("e95ec119a03e1e0a345e507d5dba8d007df853ce43585dc906ea57af67840b40")
    zeros = 2 * 5 * 8192 * 8
    ciphertext = parameters + struct.pack("<B3QdQ", 1, 2, 8192, 5, 1.0, 1) + seal(0, 8 + zeros)
    key = seal(0, len(ciphertext) + 8 + zeros) + ciphertext + struct.pack("<Q", zeros // 8)
    content = packed(parameters + struct.pack("<Q", keys), *[struct.pack("<Q", 4), *[key, zeros] * 4] * keys)
    scale = b"\x10\x07\x19" + struct.pack("<d", 2.0**30)
    return ckks.parameters() + field(2, scale + field(4, seal(2, len(content)) + content))


def test_a_context_that_unfolds_to_gigabytes_takes_no_memory(encrypted: Encrypted, model: SquareMLP) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    expected = evaluate(model, encrypted.context, encrypted.inputs)
    hostile = bomb(1000)
    assert len(hostile) < CONTEXT_BYTES
    with pytest.raises(ValueError, match=r"has ended: .* more memory or time than there is for it"):
        evaluate(model, hostile, encrypted.inputs)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    assert evaluate(model, encrypted.context, encrypted.inputs) == expected


def test_what_makes_tenseal_read_beyond_its_memory_ends_no_peer(encrypted: Encrypted, model: SquareMLP) -> None:
    """Were it not found out before: in a process of its own it may do what it likes."""
    shape = struct.pack("<3Q", 6, 5, 3)
    weights = [one.double().numpy().tobytes() for one in model]
    with suppress(ValueError):
        Worker("evaluate").ask([shape, *weights, encrypted.context, *[HALF] * 6], 3, ANSWER_BYTES)
    with suppress(ValueError):
        Worker("decrypt").ask([encrypted.key, HALF], 1, SLOTS * 8)
    assert decrypt(encrypted.key, evaluate(model, encrypted.context, encrypted.inputs), 40).shape == (40, 3)


def test_another_process_says_what_this_one_would(encrypted: Encrypted, model: SquareMLP) -> None:
    answer = evaluate(model, encrypted.context, encrypted.inputs)
    w, a, v, b = (one.double().tolist() for one in model)
    assert answer == ckks.evaluate((w, a, v, b), encrypted.context, encrypted.inputs)
    assert decrypt(encrypted.key, answer, 40).double().T.tolist() == [
        torch.tensor(column).double().float().double().tolist() for column in ckks.decrypt(encrypted.key, answer)
    ]


def test_who_evaluates_takes_no_secret_key(encrypted: Encrypted, model: SquareMLP) -> None:
    with pytest.raises(ValueError, match="a context with a secret key"):
        evaluate(model, encrypted.key, encrypted.inputs)


def test_a_reply_is_no_longer_than_it_may_be() -> None:
    key, _, ciphertexts = ckks.encrypt([[0.5] * 400])
    worker = Worker("decrypt")
    with pytest.raises(ValueError, match="of more than 3000 bytes"):
        worker.ask([key, *ciphertexts], 1, 3000)
    with pytest.raises(ValueError, match="an answer in 1 parts"):
        worker.ask([key, *ciphertexts], 2, 3200)


ASKING = """
import sys
from peer.learning.encryption import ckks
from peer.learning.encryption.worker import Worker

class Unending(list):
    def __iter__(self):
        yield self[0]
        print("asks", flush=True)
        sys.stdin.read()

worker, (key, _, ciphertexts) = Worker("decrypt"), ckks.encrypt([[0.25]])
worker.ask([key, *ciphertexts], 1, 8)
"""


@pytest.mark.parametrize(
    "then", ["print(worker, flush=True); sys.stdin.read()", "worker.ask(Unending([key, b'']), 1, 8)"]
)
def test_a_peer_that_is_killed_leaves_nobody_behind(then: str) -> None:
    """Whoever lives holds the other end of what is read here."""
    command = [sys.executable, "-c", ASKING + then]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=environment, **pipes) as asking, ExitStack() as end:
        end.callback(asking.kill)
        assert asking.stdin
        assert asking.stdout
        assert asking.stderr
        assert asking.stdout.readline()
        asking.kill()
        assert asking.stderr.read() == b""


def spoilt(parts: list[bytes]) -> list[bytes]:
    """In place of the context, or of an answer's second ciphertext, one that only begins like it."""
    return [parts[0], parts[1][:200], *parts[2:]]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("_encrypted", "peer1 sent inputs that cannot be evaluated"),
        ("_encrypted_answer", "peer1 sent an answer that cannot be decrypted"),
    ],
)
def test_who_sent_what_tenseal_cannot_read_is_named(
    made: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = getattr(predictions, made)

    def lying(peer: Peer, *who: str) -> torch.Tensor:
        whole: torch.Tensor = honest(peer, *who)
        if peer.id != "peer1":
            return whole
        return predictions._joined(spoilt([*predictions._ciphertexts(whole)]))

    monkeypatch.setattr(predictions, made, lying)
    with pytest.raises(ExceptionGroup) as failed:
        run(tmp_path, predictions="encrypted")
    assert {str(error).partition(" (")[0] for error in failed.value.exceptions} == {told}

"""Wrong input: exit 2, one clear line on stderr, no traceback, nothing created, whichever command is given it."""

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.cli import main as launch
from peer.cli import main as peer
from peer.config import load_peer, load_spec
from peer.setup import own_directory

Ports = Callable[[int], list[int]]


def content(**changes: Any) -> dict[str, Any]:
    """A right federation file of three peers; a change to None removes the key."""
    ring = [{"id": f"peer{i}", "address": f"127.0.0.1:{9100 + i}"} for i in range(3)]
    right = {"rounds": 2, "protocol": {"name": "fibfl"}, "data": {"name": "digits"}, "patience": 1, "ring": ring}
    return {key: value for key, value in {**right, **changes}.items() if value is not None}


def ring(**first: Any) -> list[dict[str, Any]]:
    """The ring with changes to its first member."""
    members = content()["ring"]
    return [{**members[0], **first}, *members[1:]]


def data(name: str = "digits", **settings: Any) -> dict[str, Any]:
    return content(data={"name": name, **settings})


def split(**partition: Any) -> dict[str, Any]:
    return data(partition=partition)


def protocol(name: str = "fibfl", **parameters: Any) -> dict[str, Any]:
    return content(protocol={"name": name, **parameters})


TEXTS: dict[str, tuple[str, str]] = {
    # what is wrong: the file's text, part of the message
    "duplicate key": ("rounds: 2\nrounds: 3\n", 'fed.yaml:2: not valid YAML: found duplicate key "rounds"'),
    "duplicate nested key": ("protocol: {name: fibfl, lr: 1e-3, lr: 0.1}\n", "duplicate key"),
    "NaN": ("rounds: 2\nprotocol: {name: fibfl, gamma: .nan}\nring: []\n", "fed.yaml:2: `protocol.gamma`"),
    "infinity": ("protocol: {name: fibfl, lr: .inf}\nring: []\n", "`protocol.lr`: input should be a finite number"),
    "too large a float": ("protocol: {name: fibfl, lr: 1e999}\nring: []\n", "finite number"),
    "yes is a word": (
        "protocol: fibfl\ntrace: yes\nring: []\n",
        '`trace`: input should be a valid boolean (given: "yes")',
    ),
    "1e3 is no integer": ("protocol: fibfl\nrounds: 1e3\nring: []\n", "`rounds`: input should be a valid integer"),
    "a tab": ("rounds: 2\n\tprotocol: fibfl\n", "not valid YAML"),
    "unclosed": ("rounds: [2\n", "not valid YAML"),
    "two documents": ("rounds: 2\n---\nrounds: 3\n", "not valid YAML"),
    "not text": ("\x00\x01", "not valid YAML"),
    "empty": ("", "holds no `key: value` pairs"),
    "a list": ("[1, 2]\n", "holds no `key: value` pairs"),
    "a word": ("hello\n", "holds no `key: value` pairs"),
    "too deep": (f"rounds: {'[' * 2000}", "its values are nested too deep"),
    "a number too long": (f"rounds: {'9' * 5000}\n", "not valid YAML: Exceeds the limit"),
    "aliases of aliases": (
        "".join(f"k{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else '1'] * 10)}]\n" for n in range(8)),
        "its aliases stand for more than 1,000,000 values",
    ),
    "JSON cut off": ('{"rounds": 2, "protocol": ', "not valid YAML"),
}
CONTENTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": (content(roundz=3), "unknown key `roundz`; did you mean `rounds`?"),
    "unknown parameter": (protocol(gama=0.3), "unknown key `gama`; did you mean `gamma`?"),
    "parameter of another protocol": (protocol(momentum=0.3), "unknown key `momentum`"),
    "unknown key of data": (data(patrition="iid"), "did you mean `partition`?"),
    "unknown key of a split": (split(kind="iid", alpha=0.5), "unknown key `alpha`; known: kind"),
    "unknown key of a member": (content(ring=ring(adress="x")), "did you mean `address`?"),
    "true for a number": (content(rounds=True), "`rounds`: input should be a valid integer (given: true)"),
    "text for a number": (content(rounds="2"), "valid integer"),
    "2.0 for an integer": (content(rounds=2.0), "valid integer"),
    "null for a number": (content(rounds=[]), "valid integer"),
    "no rounds": (content(rounds=0), "greater than or equal to 1"),
    "negative seed": (content(seed=-1), "`seed`"),
    "huge seed": (content(seed=10**30), "`seed`"),
    "beyond its range": (protocol(gamma=1.5), "`protocol.gamma`: input should be less than or equal to 1 (given: 1.5)"),
    "no learning rate": (protocol(lr=0), "greater than 0"),
    "no patience": (content(patience=0), "`patience`"),
    "init": (content(init="zero"), "'shared' or 'independent'"),
    "unknown protocol": (protocol("fibfll"), "unknown protocol `fibfll`; did you mean `fibfl`?"),
    "no protocol": (content(protocol=None), "`protocol` wants a `name`"),
    "protocol is a number": (content(protocol=3), "`protocol` wants a `name`"),
    "unknown model": (content(model="mlpp"), "unknown model `mlpp`; did you mean `mlp`?"),
    "unknown data": (data("digit"), "unknown data `digit`; did you mean `digits`?"),
    "unknown split": (split(kind="dirichlett"), "unknown partition `dirichlett`; did you mean `dirichlet`?"),
    "split without its parameter": (split(kind="dirichlet"), "alpha` is missing"),
    "unknown compared protocol": (protocol("solo", like="nobody"), "`protocol.like`"),
    "compared protocol's parameter": (protocol("solo", settings={"gama": 1}), "`gama` of fibfl"),
    "own protocol missing": (protocol("nomodule:Name"), "no module `nomodule`"),
    "own protocol without a name": (protocol(":"), "cannot be imported"),
    "own protocol not there": (protocol("json:Name"), "the module `json` has no `Name`"),
    "own protocol is none": (protocol("json:dumps"), "not a subclass of peer.Protocol"),
    "own protocol with a mistake": (protocol("mistaken:Name"), "mistaken.py:2)"),
    "own model missing": (content(model="nomodule:Name"), "no module `nomodule`"),
    "own data missing": (data("nomodule:load"), "`nomodule:load`: no module `nomodule`"),
    "own model with a mistake": (content(model="mistaken:Name"), "cannot be imported: SyntaxError: invalid syntax (/"),
    "own data with a mistake": (data("mistaken:load"), "mistaken.py:2)"),
    "own protocol that raises": (protocol("raising:Name"), "ZeroDivisionError: division by zero (/"),
    "own model that raises": (content(model="raising:Name"), "raising.py:4)"),
    "own data that raises": (data("raising:load"), "raising.py:4)"),
    "own protocol that needs more": (protocol("needy:Name"), "No module named 'nowhere' (/"),
    "own protocol without methods": (protocol("unfinished:Abstract"), "does not define `local`, `round`; add it"),
    "own protocol that cannot declare": (protocol("unfinished:Raising"), "IndexError: list index out of range (/"),
    "own protocol that declares nothing": (protocol("unfinished:Nothing"), "`local` returned None, and must return"),
    "own model that exits": (content(model="exiting:Name"), "SystemExit: enough"),
    "own model raises when made": (content(model="late:Net"), "KeyError: 'width' (/"),
    "own model raises when used": (content(model="late:net"), "name 'undefined' is not defined (/"),
    "own data that exits when read": (data("late:leave"), "late:leave failed: SystemExit: enough (/"),
    "own protocol trains no such part": (protocol("unfinished:Misspelt"), "a phase trains extractor, head, model, and"),
    "own data raises when read": (data("late:load"), "late:load failed: OSError: no tape (/"),
    "two ids": (content(ring=ring(id="peer1")), "two peers of the ring have the id `peer1`"),
    "an id of a file of the run's": (content(ring=ring(id="federation")), "over federation.yaml; rename it"),
    "a NUL in a path": (data("npz", path="a\0b"), "fed.yaml:1: `data.path` holds a NUL character; remove it"),
    "a NUL in a list": (content(ring=ring(address="a\0b:7")), "`ring.0.address` holds a NUL character"),
    "two addresses": (content(ring=ring(address="127.0.0.1:9101")), "have the address `127.0.0.1:9101`"),
    "id": (content(ring=ring(id="Peer 0")), "`ring.0.id`"),
    "address without a port": (content(ring=ring(address="127.0.0.1")), "`127.0.0.1` is no host:port"),
    "port too large": (content(ring=ring(address="127.0.0.1:65536")), "`127.0.0.1:65536` is no host:port"),
    "digits of another script": (content(ring=ring(address="127.0.0.1:٧٧٠٠")), "is no host:port"),
    "a host too long": (content(ring=ring(address=f"{'a' * 300}:7700")), "is no host:port"),
    "port 0": (content(ring=ring(address="127.0.0.1:0")), "is no host:port"),
    "ring too short": (content(ring=content()["ring"][:2]), "`fibfl` needs at least 3 peers and the ring has 2"),
    "no ring": (content(ring=None), "`ring` is missing; list the peers there or give --peers N"),
    "ring is a word": (content(ring="hello"), "`ring`: input should be a valid array"),
    "no directory of code": (content(code="nowhere"), "`code`: there is no directory /"),
    "code": (content(code=3), "`code`: input should be a valid string"),
    "a peer without samples": (data(limit=2), "leaves peer2 without any"),
    "peers without samples": (data(limit=5, partition={"kind": "label-skew", "k": 1}), "leaves peer1, peer2 "),
    "shards without end": (split(kind="pathological", xi=10**15), "less than or equal to 10000"),
    "too few classes": (split(kind="label-skew", k=9), "needs 19 classes and the data has 10"),
    "no data file": (data("npz", path="missing.npz"), "missing.npz"),
    "no path to it": (data("npz"), "`data.path` is missing"),
    "data file cut off": (data("npz", path="cut.npz"), "truncated or damaged"),
    "data file of objects": (data("npz", path="objects.npz"), "pickled Python objects, which are never loaded"),
    "no images": (data("mnist", root="nowhere"), "no mnist in"),
    "data that does not fit the model": (content(model="cnn5"), "model cnn5 takes images"),
    "BatchNorm and a peer of one sample": (
        content(model="late:norm", data={"name": "digits", "limit": 3}),
        "peer0 has one sample and model late:norm has BatchNorm",
    ),
    "BatchNorm and batches of one": (
        content(model="late:norm", protocol={"name": "fibfl++", "batch_size": 1}),
        "peer0 has a batch_size of 1 and model late:norm has BatchNorm",
    ),
    "data that does not fit the channels": (content(model="resnet18"), "does not take inputs of shape (1, 8, 8)"),
}  # fmt: skip
MODULES = {
    "mistaken": "\nclass Name(:\n",
    "raising": "import os\n\nroot = os.sep\nratio = 1 / 0\n",
    "unfinished": """from typing import ClassVar

from peer import Protocol
from peer.learning.trainer import SGD, Phase


class Abstract(Protocol):
    paper: ClassVar[str] = "none"

    def shares(self, rounds):
        return ()


class Raising(Abstract):
    def local(self):
        return [][1]

    async def round(self, peer):
        pass


class Nothing(Raising):
    def local(self):
        return None


class Misspelt(Raising):
    def local(self):
        return (Phase("modl", 1, SGD()),)
""",
    "needy": "import nowhere\n",
    "exiting": "import sys\nsys.exit('enough')\n",
    "late": """from torch import nn


def Net(shape, classes):
    return {}["width"]


def leave():
    raise SystemExit("enough")


class Broken(nn.Module):
    def forward(self, x):
        return undefined


def net(shape, classes):
    return Broken(), nn.Identity()


def norm(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4)), nn.Linear(4, classes)


def load():
    raise OSError("no tape")
""",
}
"""A user's own modules: what is wrong with each is said with file and line."""
ARGUMENTS: dict[str, tuple[list[str], str]] = {
    "more peers than the ring": (["--peers", "5"], "--peers 5 does not fit the 3 peers under `ring`"),
    "no peers": (["--peers", "0"], "--peers 0: give a number from 1 to 10000"),
    "seed": (["--seed", "-1"], "`seed`"),
    "set without a value": (["--set", "rounds"], "write key=value"),
    "set without a key": (["--set", "=3"], "write key=value"),
    "set to a word": (["--set", "rounds=abc"], "valid integer"),
    "set to no YAML": (["--set", "rounds=[3"], "--set rounds=[3: the value is not valid YAML"),
    "set to no YAML either": (["--set", "name=@"], "not valid YAML"),
    "set below a name": (["--set", "protocol.name.x=1"], "`protocol` wants a `name`"),
    "set unknown": (["--set", "a.b.c=1"], "unknown key `a`"),
    "set not a number": (["--set", "protocol.gamma=.nan"], "finite number"),
    "set to a NUL": (["--set", 'name="a\\0b"'], "`name` holds a NUL character; remove it"),
    "set the ring away": (["--set", "ring=[]"], "`ring`"),
}


class Place:
    """A directory with the files that the cases name; knows when something was created in it."""

    def __init__(self, path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.path, self._capfd = path, capfd
        np.savez(path / "whole.npz", x=np.zeros((50, 8, 8), np.uint8), y=np.arange(50) % 10)
        (path / "cut.npz").write_bytes((path / "whole.npz").read_bytes()[:2000])
        np.savez(path / "objects.npz", x=np.array([{}], object), y=np.zeros(1, np.int64))
        for name, text in MODULES.items():
            (path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        (path / "peer.yaml").write_text("federation: fed.yaml\nid: peer0\nout: out\n")
        (path / "fed.yaml").write_text(json.dumps(content()))

    def refuses(self, main: Callable[[list[str]], int], argv: list[str], message: str) -> None:
        """Exit 2, the message in one line, and nothing created."""
        before = self._files()
        self._capfd.readouterr()
        assert main(argv) == 2
        printed = self._capfd.readouterr()
        assert message in printed.err
        assert printed.err.count("\n") == 1, printed.err
        assert printed.err.startswith("dfl-peer: " if main is peer else "dfl-launch: ")
        assert printed.out == ""
        assert self._files() == before

    def everyone_refuses(self, message: str) -> None:
        """dfl-launch check and run, and dfl-peer."""
        for argv in (["check", "fed.yaml"], ["run", "fed.yaml", "--out", "out"]):
            self.refuses(launch, argv, message)
        self.refuses(peer, ["--config", "peer.yaml"], message)

    def _files(self) -> list[Path]:
        return sorted(path for path in self.path.rglob("*") if "__pycache__" not in path.parts)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Place:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return Place(tmp_path, capfd)


@pytest.mark.parametrize("case", TEXTS)
def test_file_that_cannot_be_read(case: str, place: Place) -> None:
    text, message = TEXTS[case]
    (place.path / "fed.yaml").write_text(text)
    place.everyone_refuses(message)


@pytest.mark.parametrize("case", CONTENTS)
def test_wrong_settings(case: str, place: Place) -> None:
    wrong, message = CONTENTS[case]
    (place.path / "fed.yaml").write_text(json.dumps(wrong))
    place.everyone_refuses(message)


@pytest.mark.parametrize("case", ARGUMENTS)
def test_wrong_arguments(case: str, place: Place) -> None:
    arguments, message = ARGUMENTS[case]
    for command in ("check", "run"):
        place.refuses(launch, [command, "fed.yaml", *arguments], message)


def test_the_line_of_the_mistake_is_named(place: Place) -> None:
    (place.path / "fed.yaml").write_text("rounds: 2\nprotocol:\n  name: fibfl\n  gama: 0.3\nring: []\n")
    place.everyone_refuses("fed.yaml:4: unknown key `gama`")


def test_no_file(place: Place) -> None:
    (place.path / "latin.yaml").write_bytes("name: caf\u00e9".encode("latin-1"))
    for wrong, message in (
        ("nothing.yaml", "nothing.yaml: cannot be read (No such file or directory)"),
        (".", "cannot be read (Is a directory)"),
        ("latin.yaml", "not a text file in UTF-8"),
    ):
        place.refuses(launch, ["run", wrong], message)
        place.refuses(peer, ["--config", wrong], message)


PEERS: dict[str, tuple[str, str]] = {
    "unknown key": ("lissen: x", "peer.yaml:3: unknown key `lissen`; did you mean `listen`?"),
    "no member": ("id: peer7", "`peer7` is not in the federation's ring; did you mean `peer"),
    "no federation": ("federation: nothing.yaml", "nothing.yaml: cannot be read"),
    "device": ("device: abacus", "`device`"),
    "device not there": ("device: cuda:99", "device `cuda:99`"),
    "threads": ("threads: 0", "`threads`"),
    "listen": ("listen: nonsense", "`nonsense` is no host:port"),
    "out below a file": ("out: fed.yaml/below", "cannot be written; give another `out`"),
    "out is a file": ("out: fed.yaml", "cannot be written; give another `out`"),
    "out cannot be": ("out: /proc/nobody", "/proc/nobody"),
    "out too long": (f"out: {'x' * 300}", "File name too long"),
    "out holds a NUL": ('out: "a\\0b"', "peer.yaml:3: `out` holds a NUL character; remove it"),
    "own data unknown": ("data: {name: nzp}", "unknown data `nzp`; did you mean `npz`?"),
    "own data missing": ("data: {name: npz, path: nothing.npz}", "there is no file"),
    "half of TLS": ("tls: {ca: ca.pem}", "`tls.cert` is missing"),
    "TLS files missing": ("tls: {ca: ca.pem, cert: c.pem, key: k.pem}", "ca.pem"),
}


@pytest.mark.parametrize("case", PEERS)
def test_wrong_peer_file(case: str, place: Place) -> None:
    line, message = PEERS[case]
    right = {"federation": "federation: fed.yaml", "id": "id: peer0"}
    text = "\n".join({**right, line.partition(":")[0]: line}.values())
    (place.path / "peer.yaml").write_text(text)
    place.refuses(peer, ["--config", "peer.yaml"], message)


def test_unwritable_output(place: Place) -> None:
    (place.path / "thesis").mkdir()
    (place.path / "thesis" / "thesis.tex").touch()
    outs = ["fed.yaml", "fed.yaml/below", "/proc/nobody", "thesis", "x" * 300]
    if os.geteuid():
        (place.path / "locked").mkdir(mode=0o500)
        outs += ["locked/run"]
    for out in outs:
        place.refuses(launch, ["run", "fed.yaml", "--out", out], "--out")


def test_a_device_that_is_not_there(place: Place) -> None:
    place.refuses(launch, ["run", "fed.yaml", "--out", "out", "--device", "cuda:99"], "device `cuda:99`: this machine")


def test_no_certificate_takes_the_place_of_the_ca(place: Place) -> None:
    (place.path / "fed.yaml").write_text(json.dumps(content(ring=ring(id="ca"))))
    place.refuses(launch, ["certs", "fed.yaml"], "no certificate can be made for the id `ca`")


def test_address_in_use(place: Place, ports: Ports) -> None:
    (port,) = ports(1)
    (place.path / "fed.yaml").write_text(json.dumps(content(ring=ring(address=f"127.0.0.1:{port}"))))
    with socket.create_server(("127.0.0.1", port)):
        message = f"cannot listen at 127.0.0.1:{port}: address already in use"
        place.refuses(peer, ["--config", "peer.yaml"], message)
        place.refuses(launch, ["run", "fed.yaml"], message)


def test_directory_of_another_run(place: Place) -> None:
    config, spec = load_peer(place.path / "peer.yaml")
    assert config.out
    with own_directory(config.out, config, spec):
        place.refuses(peer, ["--config", "peer.yaml"], "out: this peer is running already; end that process first")
    for wrong, key in ((content(seed=43), "seed"), (content(model="mlp3"), "model")):
        (place.path / "fed.yaml").write_text(json.dumps(wrong))
        place.refuses(peer, ["--config", "peer.yaml"], key)
    (place.path / "fed.yaml").write_text(json.dumps(content()))
    (place.path / "peer.yaml").write_text("federation: fed.yaml\nid: peer1\nout: out\n")
    place.refuses(peer, ["--config", "peer.yaml"], "out: belongs to peer `peer0`; give another `out`")
    for torn in ("half a li", "{}", "[]"):
        (config.out / "run.json").write_text(torn)
        place.refuses(peer, ["--config", "peer.yaml"], "is not readable")


def test_what_is_right_though_it_looks_odd(place: Place) -> None:
    """YAML 1.2's numbers, JSON, names without braces, anchors, and a comment."""
    (place.path / "fed.yaml").write_text(
        "protocol: {name: fibfl, lr: 1e-3, gamma: 1}  # a number each\n"
        "data: digits\nmodel: mlp\nseed: 0x10\ninit: shared\n"
        "ring:\n- &one {id: 'no', address: 'localhost:9100'}\n- {id: '1', address: '[::1]:9101'}\n"
        "- {id: a-b, address: 'host.example:9102'}\n"
    )
    spec = load_spec(place.path / "fed.yaml", overrides=["protocol.lr=2e-3", "name=odd", "trace=true"])
    assert spec.protocol.model_dump()["lr"] == 2e-3
    assert (spec.ids, spec.seed, spec.name, spec.trace) == (("no", "1", "a-b"), 16, "odd", True)
    (place.path / "fed.json").write_text(json.dumps(content(), indent=4))
    (place.path / "peer.json").write_text('{"federation": "fed.json", "id": "peer2"}')
    config, as_json = load_peer(place.path / "peer.json")
    assert config.out == place.path / "peer2"
    (place.path / "fed.yaml").write_text(json.dumps(content(name="fed")))
    assert as_json.digest() == load_spec(place.path / "fed.yaml").digest()
    assert launch(["check", "fed.json"]) == 0


UNUSABLE = ([], ["walk"], ["run"], ["run", "fed.yaml", "--peers", "x"], ["run", "fed.yaml", "--st", "x"])


@pytest.mark.parametrize("argv", UNUSABLE)
def test_wrong_command_line(argv: list[str], place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        launch(argv)
    assert "Traceback" not in capfd.readouterr().err

"""Wrong settings, modules and arguments by name, each with the words that its one sentence must have."""

import os
from collections.abc import Callable
from typing import Any

Ports = Callable[[int], list[int]]
FIRST_PORT = 7000 + 10 * (os.getpid() % 200)
"""Each process has its own, outside the range of the `ports` fixture: `run` looks whether they are free."""
TAKEN = f"127.0.0.1:{FIRST_PORT + 1}"
"""The address of the right ring's second member."""


def content(**changes: Any) -> dict[str, Any]:
    """A right federation file of three peers; a change to None removes the key."""
    ring = [{"id": f"peer{i}", "address": f"127.0.0.1:{FIRST_PORT + i}"} for i in range(3)]
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


def bypass(name: str = "fedavg", **changes: Any) -> dict[str, Any]:
    """With members that may be lost and return."""
    return content(protocol={"name": name}, on_loss="bypass", **changes)


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
    "an empty block": (
        "protocol: fibfl\ntraining:\nring: []\n",
        "fed.yaml:2: `training` is empty; write its settings there, or leave it out",
    ),
    "a tab": ("rounds: 2\n\tprotocol: fibfl\n", "indent with spaces"),
    "other indentation": ("rounds: 2\n protocol: fibfl\n", "indent the line as those beside it"),
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
    "peers": (content(peers=3), "unknown key `peers`; list the peers under `ring`, or give --peers N"),
    "another spelling": (content(optimizer="Adam"), "unknown key `optimizer`; did you mean `training.optimiser`?"),
    "part of a key": (protocol(epochs=2), "did you mean `protocol.extractor_epochs` or `protocol.head_epochs` or"),
    "other characters": (content(name="a b"), "write one or more of the characters A-Za-z0-9._-, and no others"),
    "no character": (content(name=""), "`name`: write one or more of the characters"),
    "unknown optimiser": (content(training={"optimiser": "AdamV"}), "unknown optimiser `AdamV`; did you mean"),
    "wrong argument": (
        content(training={"optimiser": {"name": "SGD", "momentun": 1}}),
        "`SGD` has no argument `momentun`; did you mean `momentum`?",
    ),
    "optimiser that is fixed": (
        content(protocol="scaffold", training={"optimiser": "AdamW"}),
        "`scaffold` cannot train with another optimiser",
    ),
    "optimiser of matrices": (content(training={"optimiser": "Muon"}), "`Muon` does not go with model mlp"),
    "unknown scheduler": (content(training={"scheduler": "StepL"}), "did you mean `StepLR`?"),
    "two gradient limits": (
        content(clip_gradient=1, training={"clip_gradient": 1}),
        "`clip_gradient` stands here and in `training`",
    ),
    "no such training step": (content(training={"step": "nowhere:f"}), "`nowhere:f`: no module `nowhere`"),
    "step that fails": (content(training={"step": "math:sqrt"}), "`math:sqrt` failed: TypeError"),
    "step of the user's that fails": (
        content(training={"step": "late:step"}),
        "`late:step` failed: ZeroDivisionError: division by zero (",
    ),
    "line of a step that fails": (content(training={"step": "late:step"}), "late.py:30)"),
    "transforms that are none": (
        data(transforms=[{"RandomCrop": 8}]),
        "`data.transforms` wants a list of transforms, such as [RandomHorizontalFlip, {RandomCrop: {size: 28}}]",
    ),
    "a task that is none": (
        content(task="json:dumps"),
        "`json:dumps` is not a subclass of peer.Task; write `class dumps(Task)`",
    ),
    "two precisions": (
        content(model={"name": "mlp", "dtype": "float16"}, training={"precision": "bfloat16"}),
        "`training.precision` is bfloat16 and `model.dtype` float16, which do not mix; write the same in both, or",
    ),
    "two precisions the other way round": (
        content(model={"name": "mlp", "dtype": "bfloat16"}, training={"precision": "float16"}),
        "`training.precision` is float16 and `model.dtype` bfloat16, which do not mix",
    ),
    "fine-tuning of a frozen head": (
        content(protocol="fedavg", model={"name": "mlp", "freeze": ["head.*"]}, finetune={"part": "head"}),
        "`finetune` trains the head, and nothing in that of model mlp is learnt; write `part: model`, or leave",
    ),
    "training of a frozen head": (
        content(protocol="fedrep", model={"name": "mlp", "freeze": ["head.*"]}),
        "`fedrep` trains the head, and nothing in that of model mlp is learnt; freeze less of it",
    ),
    "unknown key of training": (content(training={"presision": "float16"}), "did you mean `precision`?"),
    "unknown parameter": (protocol(gama=0.3), "unknown key `gama`; did you mean `gamma`?"),
    "parameter of another protocol": (protocol(momentum=0.3), "unknown key `momentum`"),
    "unknown key of data": (data(patrition="iid"), "did you mean `partition`?"),
    "unknown key of a split": (split(kind="iid", alpha=0.5), "unknown key `alpha`; known: kind"),
    "unknown key of a member": (content(ring=ring(adress="x")), "did you mean `address`?"),
    "unknown data of a member": (content(ring=ring(data="digitz")), "unknown data `digitz`; did you mean `digits`?"),
    "unknown key of a member's data": (
        content(ring=ring(data={"name": "csv", "path": "x.csv", "labl": "y"})),
        "unknown key `labl`; did you mean `label`?",
    ),
    "no data of a member": (content(ring=ring(data={"name": "npz", "path": "{id}.npz"})), "peer0.npz"),
    "a misspelt id in a path": (data("npz", path="{ID}.npz"), "`{ID}` in {ID}.npz stands for nothing; write `{id}`"),
    "more samples than a ciphertext holds": (
        content(protocol={"name": "vpdl", "predictions": "encrypted"}, data="many:load", model="mlp-square"),
        "the 4,100 samples of peer0 do not fit into a ciphertext, which holds 4,096; give the peers fewer",
    ),
    "a split of what is each peer's own": (
        data("npz", path="{id}.npz", partition={"kind": "dirichlet", "alpha": 1.0}),
        "is each peer's own, so a `partition` cannot be; leave it out",
    ),
    "public samples of what is each peer's own": (
        data("npz", path="{id}.npz", validation=0.2),
        "is each peer's own, so `validation` cannot be; leave it out",
    ),
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
    "unknown wire": (content(wire="bf16"), "unknown wire `bf16`; did you mean `bfloat16`?"),
    "wire is a number": (content(wire=16), "`wire`: "),
    "unknown key of a wire": (content(wire={"kind": "top-k", "shares": 0.1}), "did you mean `share`?"),
    "key of another wire": (content(wire={"kind": "bfloat16", "share": 0.1}), "unknown key `share`; known: kind"),
    "wire without its kind": (content(wire={"share": 0.1}), "`wire.kind` is missing"),
    "unknown key of a later split": (
        data(drift=[{"round": 2, "partition": {"kind": "iid", "alpha": 0.5}}]),
        "unknown key `alpha`; known: kind",
    ),
    "no share": (content(wire={"kind": "top-k", "share": 0}), "greater than 0"),
    "most of a vector": (content(wire={"kind": "top-k", "share": 0.9}), "less than or equal to 0.5"),
    "top-k of a mean": (protocol("fedavg") | {"wire": "top-k"}, "the mean of `model` needs all; write"),
    "top-k of a token": (protocol("fedisp") | {"wire": "top-k"}, "`model` is handed on as a whole"),
    "codec by its name alone": (content(wire="json:dumps"), "not a subclass of peer.Codec"),
    "codec without a name": (content(wire="codec"), "`wire` wants a `name`"),
    "codec that nobody brings": (content(wire={"kind": "codec", "name": "qsgd"}), "unknown wire `qsgd`; known: module"),
    "codec that is none": (content(wire={"kind": "codec", "name": "json:dumps"}), "not a subclass of peer.Codec"),
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
    "own protocol not there": (protocol("json:Name"), "__init__.py) has no `Name`; known: "),
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
    "own protocol without methods": (protocol("unfinished:Abstract"), "does not define `local`, `round`; add `def"),
    "own protocol that cannot declare": (protocol("unfinished:Raising"), "IndexError: list index out of range (/"),
    "own protocol that declares nothing": (protocol("unfinished:Nothing"), "returned None, and must be a tuple"),
    "own protocol's records without a comma": (
        protocol("commas:Records"),
        "`records` of `commas:Records` is one Record and no tuple; write a comma behind it: `(Record(...),)`",
    ),
    "own protocol's shares without a comma": (protocol("commas:Shares"), "one Share and no tuple; write a comma"),
    "own protocol's phases without a comma": (protocol("commas:Phases"), "one Phase and no tuple; write a comma"),
    "own protocol's records are names": (
        protocol("commas:Names"),
        "`records` of `commas:Names` is ('losses',), and must be a tuple of Record",
    ),
    "own protocol with a constructor": (protocol("constructed:Own"), "`constructed:Own` defines `__init__`"),
    "own protocol with an inherited constructor": (protocol("constructed:Heir"), "write its settings as fields"),
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
    "neither an address nor dials_out": (
        content(ring=[{"id": "peer0"}, *content()["ring"][1:]]),
        "`ring.0`: `peer0` has no `address`; write host:port",
    ),
    "an address and dials_out": (content(ring=ring(dials_out=True)), "`peer0` has both an `address` and `dials_out`"),
    "two addresses": (content(ring=ring(address=TAKEN)), f"have the address `{TAKEN}`"),
    "id": (content(ring=ring(id="Peer 0")), "`ring.0.id`"),
    "address without a port": (content(ring=ring(address="127.0.0.1")), "`127.0.0.1` is not host:port"),
    "port too large": (content(ring=ring(address="127.0.0.1:65536")), "`127.0.0.1:65536` is not host:port"),
    "digits of another script": (content(ring=ring(address="127.0.0.1:٧٧٠٠")), "is not host:port"),
    "a host too long": (content(ring=ring(address=f"{'a' * 300}:7700")), "is not host:port"),
    "port 0": (content(ring=ring(address="127.0.0.1:0")), "is not host:port"),
    "ring too short": (
        content(ring=content()["ring"][:2]),
        "`fibfl` needs at least 3 peers and the ring has 2; add peers, or choose a protocol that goes with fewer: ",
    ),
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
    "bypass of two": (bypass(ring=ring()[:2]), "`on_loss: bypass` cannot be: of 2 peers no majority is left"),
    "bypass without edges": (bypass("solo"), "`on_loss: bypass` cannot be: the peers of `solo` are not connected"),
    "bypass of noise drawn once": (bypass("dp-fedavg"), "`dp-fedavg` needs all its members: rounds that are played"),
    "bypass of a state that cannot be sent": (
        bypass("constructed:Keeping"),
        "no way to give `seen` to who is taken in; declare Share('seen', size=..., rounds=range(0)) in `shares`",
    ),
    "bypass of one that dials out": (
        bypass(ring=ring(address=None, dials_out=True)),
        "`peer0` dials out, and members must reach each other; give it an `address`",
    ),
    "bypass until the best": (
        bypass(stop_early={"patience": 2}, hold_back=0.2),
        "`on_loss: bypass` cannot be: `stop_early`",
    ),
    "bypass with differences": (bypass(wire="top-k"), "`on_loss: bypass` cannot be: `wire: top-k`"),
    "a beginning with more than all": (bypass(start_with=4), "`start_with: 4` does not fit 3 peers; give it 2 to 3"),
}  # fmt: skip
MODULES = {
    "mistaken": "\nclass Name(:\n",
    "raising": "import os\n\nroot = os.sep\nratio = 1 / 0\n",
    "unfinished": """from typing import ClassVar

from peer import Protocol
from peer import SGD, Phase


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
    "many": """import numpy as np


def load():
    x, y = np.zeros((3 * 4100, 4), np.float32), np.arange(3 * 4100) % 2
    return x, y, x[:30], y[:30]
""",
    "commas": """from peer import Record, Share
from peer import SGD, Phase
from peer.protocols.fibfl import FibFL


class Records(FibFL):
    name: str
    records = (Record("losses"))


class Names(FibFL):
    name: str
    records = ("losses",)


class Shares(FibFL):
    name: str

    def shares(self, rounds):
        return (Share("extractor"))


class Phases(FibFL):
    name: str

    def local(self):
        return (Phase("model", 1, SGD()))
""",
    "constructed": """from peer.protocols.fibfl import FibFL


class Own(FibFL):
    name: str

    def __init__(self):
        self.step = 0


class Heir(Own):
    pass


class Keeping(FibFL):
    name: str
    replicated = ("seen",)
""",
    "counting": """from pydantic import model_validator

from peer.protocols.fibfl import FibFL

validations = []


class Counted(FibFL):
    name: str

    @model_validator(mode="after")
    def count(self):
        validations.append(self.name)
        return self
""",
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


def step(step, batch):
    return 1 / 0
""",
}
"""A user's own modules: what is wrong with each is said with file and line."""
ARGUMENTS: dict[str, tuple[list[str], str]] = {
    "more peers than the ring": (["--peers", "5"], "--peers 5 does not fit the 3 peers under `ring`"),
    "no peers": (["--peers", "0"], "--peers 0: give a number from 1 to 10000"),
    "port for a ring": (["--port", "9000"], "--port 9000 goes with --peers N where the file has no `ring`"),
    "seed": (["--seed", "-1"], "dfl-launch: --seed -1: `seed`: input should be greater than or equal to 0"),
    "set without a value": (["--set", "rounds"], "write key=value"),
    "set without a key": (["--set", "=3"], "write key=value"),
    "set to a word": (["--set", "rounds=abc"], "valid integer"),
    "set to no YAML": (["--set", "rounds=[3"], "--set rounds=[3: the value is not valid YAML"),
    "set to no YAML either": (["--set", "name=@"], "not valid YAML"),
    "set below a name": (["--set", "protocol.name.x=1"], "`protocol` wants a `name`"),
    "set unknown": (["--set", "a.b.c=1"], "unknown key `a`"),
    "set misspelt": (
        ["--set", "protocol.gama=3"],
        "dfl-launch: --set protocol.gama=3: unknown key `gama`; did you mean `gamma`?",
    ),
    "set misspelt in a union": (
        ["--set", "data.partition={kind: dirichlet, alpha: 1}", "--set", "data.partition.alpa=2"],
        "dfl-launch: --set data.partition.alpa=2: unknown key `alpa`; did you mean `alpha`?",
    ),
    "set to an unknown kind": (
        ["--set", "data.partition.kind=dirichlett"],
        "dfl-launch: --set data.partition.kind=dirichlett: unknown partition `dirichlett`",
    ),
    "set twice": (
        ["--set", "protocol.gamma=2", "--set", "protocol.gamma=3"],
        "dfl-launch: --set protocol.gamma=3: `protocol.gamma`: input should be",
    ),
    "set beside a mistake in the file": (
        ["--set", "protocol.gamma=0.3", "--set", "ring=3"],
        "dfl-launch: --set ring=3:",
    ),
    "set to no list": (
        ["--set", "data.transforms=abc"],
        "dfl-launch: --set data.transforms=abc: `data.transforms` wants a list of transforms",
    ),
    "set by its short form": (
        ["--set", "clip_gradient=-1"],
        "dfl-launch: --set clip_gradient=-1: `training.clip_gradient`: input should be greater than 0 (given: -1)",
    ),
    "set to what wants more": (["--set", "data.name=csv"], "dfl-launch: --set data.name=csv: `data.path` is missing"),
    "set in a block that the file lacks": (
        ["--set", "task.judged_by=[auroc]"],
        "dfl-launch: --set task.judged_by=[auroc]: `task` wants a `name`",
    ),
    "set to what does not go together": (
        ["--set", "task=regression", "--set", "test=matched"],
        "dfl-launch: fed.yaml with --set task=regression, --set test=matched: `test: matched` goes by classes",
    ),
    "set to a class that is not there": (
        ["--set", "training.scheduler.name=nix"],
        "dfl-launch: --set training.scheduler.name=nix: `training.scheduler`: unknown scheduler `nix`",
    ),
    "set in no block": (["--set", "head_epochs=1"], "unknown key `head_epochs`; did you mean `protocol.head_epochs`?"),
    "set in the wrong block": (["--set", "protocol.rounds=1"], "did you mean `rounds` outside of all blocks?"),
    "set like others": (["--set", "batch_size=1"], "did you mean `protocol.batch_size` or `finetune.batch_size`?"),
    "set two blocks too high": (["--set", "alpha=1"], "did you mean `data.partition.alpha`?"),
    "set of several blocks": (["--set", "lr=1"], "did you mean `protocol.lr` or `finetune.lr`?"),
    "set not a number": (["--set", "protocol.gamma=.nan"], "finite number"),
    "set to a NUL": (["--set", 'name="a\\0b"'], "`name` holds a NUL character; remove it"),
    "set the ring away": (["--set", "ring=[]"], "`ring`"),
}

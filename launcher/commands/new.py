"""`dfl-launch new`: a protocol, a model or a data set of one's own to begin with, its test, and a federation of it; and
`dfl-launch new federation TABLE`: a federation that learns from a table of one's own, and a file for each site."""

import argparse
import ast
import json
import keyword
import os
import re
import shlex
from collections.abc import Collection, Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from launcher.commands.check import check_command
from launcher.output import Output
from peer.errors import InputError
from peer.files import unwritable_reason
from peer.learning.data.sources import SOURCES
from peer.learning.model.zoo import MODELS
from peer.protocols.registry import PROTOCOLS
from peer.spec.federation import MAX_PEERS
from peer.spec.loading import FIRST_PORT

if TYPE_CHECKING:
    import pandas

WRITTEN = {"code.py": "{}.py", "test.py": "test_{}.py", "federation.yaml": "{}.yaml"}
"""Under which name each template is written."""
PEERS = 4


def new_command(arguments: argparse.Namespace, output: Output) -> int:
    """Write the files, and say which, and what to type next. InputError where one of them cannot be written."""
    kind, name, out = arguments.kind, arguments.name, arguments.out
    if kind == "federation":
        return new_federation(arguments, output)
    check_name(name)
    class_name = "".join(word.capitalize() for word in name.split("_"))
    texts = {file.format(name): filled(kind, template, name, class_name) for template, file in WRITTEN.items()}
    check_place(out, texts)  # first: what is there may be a module of that name
    check_free(name)
    check_unused(kind, class_name if kind == "protocol" else name)
    code, test, federation = write(out, texts)
    output.say(
        f"{code}, {test}, {federation}: change the first one, then",
        f"  dfl-launch check {federation} --peers {PEERS}",
        f"  python -m pytest {test}",
        f"  dfl-launch run {federation} --peers {PEERS}",
    )
    return 0


def check_place(out: Path, names: Collection[str]) -> None:
    """InputError where one of the files is there, or none can be written."""
    if there := next((out / name for name in names if (out / name).exists()), None):
        raise InputError(f"{there} is there already, and nothing was written; choose another name, or --out DIR")
    if unwritable := unwritable_reason(out):
        raise InputError(f"{unwritable}; choose another directory with --out")


def write(out: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write the files into a directory, which is made where it is missing."""
    paths = {out / name: text for name, text in texts.items()}
    out.mkdir(parents=True, exist_ok=True)
    for path, text in paths.items():
        with path.open("x", encoding="utf-8") as file:  # nothing is written through a link, or over what has come since
            file.write(text)
    return [*paths]


def filled(kind: str, template: str, name: str, class_name: str) -> str:
    text = files("launcher").joinpath("templates", kind, f"{template}.template").read_text(encoding="utf-8")
    return Template(text).substitute(name=name, Name=class_name, peers=PEERS)


def check_name(name: str) -> None:
    """InputError unless a module can be called so."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or not name[0].isalpha():
        raise InputError(f"`{name}` cannot name a module; take letters, digits and _, such as my_ring")
    if name != name.lower():
        raise InputError(f"`{name}` has capital letters, which some disks do not tell apart; write {name.lower()}")


def check_free(name: str) -> None:
    """InputError where the name stands for something else already."""
    if name in {*PROTOCOLS, *MODELS, *SOURCES}:
        raise InputError(f"`{name}` comes with this project; choose another name, such as my_{name}")
    if find_spec(name):
        raise InputError(f"`{name}` is an installed module, which would be taken for yours; choose another name")


def check_unused(kind: str, defined: str) -> None:
    """InputError where what is written uses the name of its class or function for something else."""
    trees = [ast.parse(filled(kind, template, "_", "_")) for template in ("code.py", "test.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    used = {getattr(node, field, None) for node in nodes for field in ("id", "arg", "name", "asname")}
    if defined in used or keyword.iskeyword(defined):
        raise InputError(f"`{defined}` stands for something else in what is written; choose another name")


LABELS = {"label", "target", "class", "diagnosis", "outcome", "result", "y"}
"""What the column to be predicted is mostly called."""
MOST_CLASSES = 20
"""A column of numbers with more different ones has no classes."""
MOST_NAMES = 100
"""More different texts are no classes."""
OTHER = "name another column with --label"
SITE = """federation: federation.yaml
id: {id}
# The site's own table; without it the site takes a part of the federation's:
# data: {data}
"""


def new_federation(arguments: argparse.Namespace, output: Output) -> int:
    """Write the files and check them. InputError where a file is there, or what to predict is not clear."""
    table, out = Path(arguments.name), arguments.out
    if not 2 <= arguments.peers <= MAX_PEERS:
        raise InputError(f"--peers {arguments.peers}: a federation has 2 peers or more, and at most {MAX_PEERS}")
    kind = "parquet" if table.suffix == ".parquet" else "csv"
    source: Any = SOURCES[kind]
    frame = source.model_construct(name=kind, path=table, label=arguments.label or "").frame()
    label = chosen_label(frame, arguments.label)
    sites = [f"site{number}" for number in range(arguments.peers)]
    ring = [{"id": id, "address": f"127.0.0.1:{FIRST_PORT + number}"} for number, id in enumerate(sites)]
    data: dict[str, Any] = {"name": kind, "path": os.path.relpath(table.resolve(), out.resolve()), "label": label}
    classes = classes_of(frame[label])
    data |= {"class_names": classes} if classes else {}
    content = {
        "name": re.sub(r"[^A-Za-z0-9._]+", "-", table.name.partition(".")[0]).strip("-") or "federation",
        "rounds": 20,
        "protocol": "fibfl" if len(sites) > 2 else "fedrep",
        "task": "regression" if classes is None else "classification",
        "data": data | {"standardize": "federation"},
        "ring": ring,
    }
    own = json.dumps(data | {"path": f"/srv/{table.name}"}, ensure_ascii=False)
    files = {"federation.yaml": as_yaml(content), **{f"{id}.yaml": SITE.format(id=id, data=own) for id in sites}}
    check_place(out, files)
    write(out, files)
    federation = out / "federation.yaml"
    named = shlex.quote(str(federation))
    output.say(f"{federation} predicts `{label}`. On this machine: dfl-launch run {named}", "")
    asked = {"federation": federation, "peers": None, "port": None, "seed": None, "overrides": []}
    try:
        return check_command(argparse.Namespace(**asked), output)
    except InputError as error:
        raise InputError(f"{error}; keys go into `data` of {federation}; then dfl-launch check {named}") from None


def classes_of(column: "pandas.Series[Any]") -> list[str] | None:
    """The names of the classes, none if they are the numbers from 0 up; None for numbers that are no classes."""
    values = [*column.dropna().unique()]
    if len(values) < 2:
        raise InputError(f"column {column.name!r} has fewer than two different values; {OTHER}")
    if any(isinstance(value, str) for value in values):
        if len(values) > MOST_NAMES:
            raise InputError(f"column {column.name!r} has {len(values)} different texts; {OTHER}")
        return sorted(map(str, values))
    try:
        whole = all(value == int(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"column {column.name!r} holds neither texts nor finite numbers; {OTHER}") from None
    if not whole or len(values) > MOST_CLASSES:
        return None
    numbers = sorted(map(int, values))
    return [] if numbers == [*range(len(numbers))] else [*map(str, numbers)]


def chosen_label(frame: "pandas.DataFrame", given: str | None) -> str:
    """The column to be predicted: the one given, the only one with such a name, or a last column of classes."""
    columns = [*map(str, frame.columns)]
    if given is not None and given not in columns:
        raise InputError(f"--label {given}: the table has no such column; it has {', '.join(columns)}")
    named = [given] if given is not None else [name for name in columns if name.lower() in LABELS]
    if not named and frame[frame.columns[-1]].nunique() <= MOST_CLASSES:
        named = columns[-1:]
    if len(named) != 1:
        raise InputError(f"which column is to be predicted? Give --label, one of {', '.join(columns)}")
    return named[0]


def as_yaml(content: dict[str, Any]) -> str:
    """A key a line, and each member of the ring in its own."""
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items() if key != "ring"]
    return "\n".join([*lines, "ring:", *(f"  - {json.dumps(one)}" for one in content["ring"]), ""])

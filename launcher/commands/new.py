"""`dfl-launch new`: a protocol, a model or a data set of one's own to begin with, its test, and a federation of it."""

import argparse
import ast
import keyword
from collections.abc import Collection, Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from peer.errors import InputError
from peer.files import unwritable_reason

if TYPE_CHECKING:
    from launcher.output import Output


KINDS = ("protocol", "model", "data", "federation")
WRITTEN = {"code.py": "{}.py", "test.py": "test_{}.py", "federation.yaml": "{}.yaml"}
"""Under which name each template is written."""
PEERS = 4


def new_command(arguments: argparse.Namespace, output: "Output") -> int:
    """Write the files, and say which, and what to type next. InputError where one of them cannot be written."""
    kind, name, out = arguments.kind, arguments.name, arguments.out
    if kind == "federation":
        from launcher.commands.new_federation import new_federation

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
    """What is written."""
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
    from peer.learning.data.sources import SOURCES
    from peer.learning.model.zoo import MODELS
    from peer.protocols.registry import PROTOCOLS

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

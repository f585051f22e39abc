"""Programs that run without dfl, or beside every peer, import nothing that is missing there or slow."""

import ast
import sys
from pathlib import Path

import pytest

from launcher.engines import ENGINES, programs
from launcher.engines.base import engine

PROGRAMS = Path(programs.__file__).parent


def imported(program: str, everywhere: bool = True) -> set[str]:
    """What a program imports; without `everywhere` only at its top."""
    tree = ast.parse((PROGRAMS / f"{program}.py").read_text())
    nodes = ast.walk(tree) if everywhere else tree.body
    found = set[str]()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return {name.partition(".")[0] for name in found}


@pytest.mark.parametrize("program", ["ssh_host", "ssh_keeper", "volume_agent"])
def test_a_stand_alone_program_uses_the_standard_library_alone(program: str) -> None:
    assert imported(program) <= sys.stdlib_module_names


def test_a_task_of_slurm_uses_the_standard_library_alone_until_its_peer_has_failed() -> None:
    assert imported("slurm_task", everywhere=False) <= sys.stdlib_module_names


def test_the_fork_server_imports_nothing_heavy_before_it_sets_the_number_of_threads() -> None:
    assert imported("fork_server", everywhere=False) - sys.stdlib_module_names == {"peer"}


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_can_be_found(name: str) -> None:
    given = {"kubernetes": {"image": "dfl"}, "ssh": {"hosts": ({"host": "lab0"},)}}.get(name, {})
    assert engine(name, given).name == name

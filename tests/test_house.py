"""The house: imports run downwards only and in no circle, and each special library has one room."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = (
    {"launcher"},
    {"extras"},
    {"peer.preloaded"},
    {"peer.cli"},
    {"peer.runtime"},
    {"peer.spec"},
    {"peer.protocols"},
    {"peer.learning", "peer.network"},
    {"peer.topology", "peer.telemetry", "peer.views"},
    {"peer.plugins", "peer.files", "peer.process", "peer.tasks"},
    {"peer.errors", "peer.records", "peer.settings", "peer.text", "peer.versions"},
)
"""From the top down; rooms of one floor do not know each other."""
LAUNCHER = (
    {"launcher.cli"},
    {"launcher.study"},
    {"launcher.commands"},
    {"launcher.supervision", "launcher.dashboard"},
    {"launcher.page"},
    {"launcher.engines", "launcher.monitor", "launcher.reports"},
    {"launcher.plan", "launcher.recorded_spec"},
    {"launcher.certificates", "launcher.command_spec", "launcher.headline", "launcher.table", "launcher.views"},
    {"launcher.history", "launcher.run_files"},
    {"launcher.output"},
)
NETWORK = (
    {"peer.network.collectives", "peer.network.operator_client"},
    {"peer.network.network", "peer.network.view_rpc"},
    {"peer.network.streams"},
    {"peer.network.durability"},
    {"peer.network.neighbours"},
    {"peer.network.transport"},
    {"peer.network.wire"},
    {"peer.network.limits"},
)
ONE_ROOM = {
    "grpc": {"peer.network.operator_client", *(f"peer.network.transport.{name}" for name in ("grpc", "server", "tls"))},
    "dask": {"launcher.study.dask_pool"},
    "distributed": {"launcher.study.dask_pool", "launcher.study.dask_worker"},
    "tenseal": {"peer.learning.encryption.ckks"},
    "prometheus_client": {"peer.telemetry.metrics"},
    "starlette": {"launcher.dashboard.site"},
    "uvicorn": {"launcher.dashboard.server"},
    "torchvision": {"peer.learning.vision"},
    "peer.network.wire.stubs": {"peer.network.wire.messages"},
    "pickle": set[str](),
}
"""The modules that may import what is used in one place only."""
MOST_ARGUMENTS = 5


def modules() -> dict[str, Path]:
    files = [
        path
        for top in ("peer", "launcher", "extras")
        for path in (ROOT / top).rglob("*.py")
        if "stubs" not in path.parts
    ]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


MODULES = modules()


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those that only a type checker sees."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from walk(child)


@cache
def imports(module: str, lazy: bool = True) -> frozenset[str]:
    """What a module imports; without `lazy` only what is imported with it."""
    found = set()
    for node in walk(tree(module)) if lazy else walk_at_import(tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in below}
    return frozenset(found)


def walk_at_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from walk_at_import(child)


def within(module: str, room: str) -> bool:
    return f"{module}.".startswith(f"{room}.")


def floor(module: str, floors: tuple[set[str], ...]) -> tuple[int, str] | None:
    for number, rooms in enumerate(floors):
        for room in rooms:
            if within(module, room):
                return number, room
    return None


@pytest.mark.parametrize("floors", [FLOORS, LAUNCHER, NETWORK], ids=["peer", "launcher", "network"])
def test_imports_run_downwards(floors: tuple[set[str], ...]) -> None:
    upward = []
    for module in MODULES:
        here = floor(module, floors)
        for imported in imports(module):
            there = floor(imported, floors)
            if here and there and here[1] != there[1] and there[0] <= here[0]:
                upward.append(f"{module} imports {imported}")
    assert not upward


def test_every_module_has_a_floor() -> None:
    assert not [name for name in MODULES if "." in name and not floor(name, FLOORS)]
    assert not [name for name in MODULES if within(name, "launcher") and "." in name and not floor(name, LAUNCHER)]
    within_network = [name for name in MODULES if within(name, "peer.network") and name != "peer.network"]
    assert not [name for name in within_network if not floor(name, NETWORK)]


def test_no_circle() -> None:
    done, path = set[str](), list[str]()

    def visit(module: str) -> None:
        assert module not in path, f"a circle of imports: {' -> '.join([*path[path.index(module) :], module])}"
        if module in done:
            return
        path.append(module)
        for imported in sorted(imports(module, lazy=False) & MODULES.keys()):
            visit(imported)
        path.pop()
        done.add(module)

    for module in MODULES:
        visit(module)


@pytest.mark.parametrize("library", ONE_ROOM)
def test_special_libraries_stay_in_one_room(library: str) -> None:
    users = {module for module in MODULES if any(within(imported, library) for imported in imports(module))}
    assert users <= ONE_ROOM[library]


def test_the_launcher_touches_no_link_and_no_runtime_of_a_peer() -> None:
    allowed = {"peer.runtime.dry_run"}
    own = {"launcher.study.worker": {"peer.runtime.in_process"}, "launcher.study.pool": {"peer.runtime.resources"}}
    own["launcher.commands.rewind"] = {"peer.runtime.backup"}
    for module in (name for name in MODULES if within(name, "launcher")):
        used = {one for one in imports(module) if within(one, "peer.runtime")} - allowed - own.get(module, set())
        used |= {one for one in imports(module) if within(one, "peer.network")}
        asking = {f"peer.network.transport.{name}" for name in ("addresses", "tls")}
        assert used <= asking | {"peer.network.operator_client"}, (module, used)


def test_constructors_take_few_arguments() -> None:
    many = []
    for module in MODULES:
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                count = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs) - 1
                if count > MOST_ARGUMENTS:
                    many.append(f"{module}:{node.lineno} takes {count}")
    assert not many

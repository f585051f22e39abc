"""What the documentation says is so: generated pages are current, links resolve, YAML and commands are accepted."""

import ast
import asyncio
import importlib
import importlib.util
import json
import re
import runpy
import shlex
import shutil
import struct
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from launcher import cli as launcher
from launcher.commands import deployment_files
from launcher.engines.base import engine
from launcher.engines.docker import DockerSettings
from launcher.study.grid import cells, read_study
from peer import cli as peer
from peer.network.wire.frames import HEADER, Heading, Key, encode_frame
from peer.protocols.base import Peer, Protocol
from peer.runtime.in_process import run_in_process
from peer.spec.loading import load_peer, load_spec

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
COMPOSE = "run `dfl-launch compose examples/demo.yaml --build .`"
MANIFESTS = "run `dfl-launch manifests examples/demo.yaml --set plaintext=true --out deploy/kubernetes`"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TARGETS = re.compile(r"^([\w-]+)[^:]*:", re.MULTILINE)
NOT_CHECKED = {
    "text": "what a program says, or a drawing; of the tutorial's, test_tutorial.py compares it",
    "promql": "needs a Prometheus; tests/engines has one",
}
"""Kinds of blocks that no test here looks into, and why."""
NOT_RUN = {
    "docker": "needs Docker; tests/engines does the same",
    "dask": "servers; tests/engines/test_dask.py starts them",
    "for": "a loop over what Docker says",
    "kubectl": "needs a cluster; tests/engines has most of one",
    "curl": "needs a run that goes on; tests/telemetry asks the same address",
    "prometheus": "a server; tests/engines checks its file with promtool",
    "tensorboard": "a server",
    "systemctl": "needs root and systemd; tests/engines checks the unit",
    "journalctl": "needs systemd",
    "runuser": "needs root",
    "useradd": "needs root",
    "install": "needs root",
    "python3": "makes an environment in /opt",
    "/opt/dfl/bin/pip": "needs that environment",
}
"""Programs in blocks that are commands, and why no test calls them as they stand there."""
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def test_generated_pages_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    for page, text in importlib.import_module("generate").pages().items():
        assert page.read_text(encoding="utf-8") == text, f"{page.name}: run `make docs`"


def test_the_protocol_in_the_readme_is_the_example() -> None:
    example = (ROOT / "examples" / "my_protocol.py").read_text(encoding="utf-8")
    assert example in blocks(ROOT / "README.md", "python")
    assert sum(bool(line.strip()) for line in example.splitlines()) <= 30


def test_all_that_a_protocol_can_do_is_told() -> None:
    told = (ROOT / "docs" / "own-protocol.md").read_text(encoding="utf-8")
    of_all = (*Peer.__annotations__, *vars(Peer), *Protocol.__annotations__, *vars(Protocol))
    derived = {"declarations", "state_contract", "lacks", "model_config", "name"}
    names = [name for name in of_all if not name.startswith("_") and name not in derived]
    assert [name for name in names if not re.search(rf"\b{name}\b", told)] == []


@each_page
def test_links_resolve(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in link:
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def anchors(page: Path) -> set[str]:
    """The names that headings have on a page, and earlier ones that links still use."""
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    earlier = re.findall(r'^<a id="([\w-]+)"></a>$', text, re.MULTILINE)
    return {*earlier, *(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)}


@each_page
def test_yaml_is_accepted(page: Path, tmp_path: Path) -> None:
    """A block with `federation:` is a peer's file, of the page's first federation with that id; others are a spec."""
    federation = ""
    if page.name == "huggingface.md":
        write_what_it_names(tmp_path)
    if page.name == "wire.md":
        (tmp_path / "own_codec.py").write_text(blocks(page, "python")[0], encoding="utf-8")
    if page.name == "monai.md":
        bundle = tmp_path / "bundles" / "spleen_ct_segmentation" / "configs"
        bundle.mkdir(parents=True)
        config = runpy.run_path(str(ROOT / "examples" / "bundle.py"))["TRAIN"]
        (bundle / "train.json").write_text(json.dumps(config), encoding="utf-8")
    for text in blocks(page, "yaml"):
        file = tmp_path / "file.yaml"
        if text.startswith("hosts:"):
            file.write_text(text, encoding="utf-8")
            assert engine("ssh", {"hosts": str(file)}).settings.hosts
            continue
        if "\ngrid:" in text:
            file.write_text(text, encoding="utf-8")
            assert cells(*read_study(file), tmp_path)
            continue
        if not text.startswith("federation:"):
            federation = text if "ring:" in text else federation
            file.write_text(text, encoding="utf-8")
            load_spec(file, peers=None if "ring:" in text else 5)
            continue
        id = re.search(r"^id: (.*)$", text, re.MULTILINE)
        assert id
        ring = f'protocol: solo\nring: [{{id: {id[1]}, address: "127.0.0.1:7700"}}]\n'
        (tmp_path / "federation.yaml").write_text(federation or ring, encoding="utf-8")
        file.write_text(text, encoding="utf-8")
        load_peer(file)


def write_what_it_names(folder: Path) -> None:
    """A model's folder, as far as it is looked into without the library, and two notes."""
    (folder / "models" / "bert").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / "models" / "bert" / name).write_text("{}")
    notes = ({"note": "a rash", "diagnosis": "skin"}, {"note": "a cough", "diagnosis": "lung"})
    (folder / "notes.jsonl").write_text("\n".join(map(json.dumps, notes)))


@each_page
def test_every_block_is_looked_at(page: Path) -> None:
    """It is of a kind that some test runs or checks, or shows what a program says."""
    kinds = {"", "yaml", "python", "json", *NOT_CHECKED} | ({"sh"} if page.name == "tutorial.md" else set())
    assert {kind for kind, _ in BLOCK.findall(page.read_text(encoding="utf-8"))} <= kinds


@each_page
def test_commands_are_accepted(page: Path) -> None:
    """Commands of `dfl-launch` and `dfl-peer` have arguments that exist, those of `make` are targets."""
    targets = set(TARGETS.findall((ROOT / "Makefile").read_text()))
    for block in [*blocks(page, ""), *blocks(page, "sh")]:
        for command in re.sub(r"\\?\n +", " ", block).splitlines():
            words = shlex.split(command.replace("[-", "-").replace("]", ""), comments=True)
            match words:
                case ["dfl-launch", *arguments]:
                    numbers = {"N": "3", "S": "7", "P": "7800", "[P": "7800", "DIR...": "DIR"}
                    launcher.parser().parse_args(
                        [numbers.get(word, word) for word in arguments if word != "--version"] or ["protocols"]
                    )
                case ["dfl-peer", *arguments]:
                    shell = next((at for at, word in enumerate(arguments) if re.match(r"[&>|]|2>|2$", word)), None)
                    peer._parser().parse_args(arguments[:shell])
                case ["make", *named]:
                    assert {*named} <= targets
                case ["python" | ".venv/bin/python", "-m", module, *_]:
                    assert importlib.util.find_spec(module)
                case [program, *_]:
                    assert program in NOT_RUN or page.name == "tutorial.md", command
    text = page.read_text(encoding="utf-8")
    assert {*re.findall(r"`make (\w+)`", text)} <= targets
    extras = {*tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]}
    assert {name for found in re.findall(r"'dfl\[([\w,]+)\]'", text) for name in found.split(",")} <= extras


@each_page
def test_python_has_names_that_exist(page: Path) -> None:
    """Ruff finds none that is undefined, and what a block imports of this project is there."""
    given = f"builtins={['images', 'peer', 'self', *importlib.import_module('peer').__all__]}"
    for text in blocks(page, "python"):
        command = ["ruff", "check", "--isolated", "--select=F821,F811", "--config", given, "-"]
        checked = subprocess.run([sys.executable, "-m", *command], input=text, capture_output=True, encoding="utf-8")
        assert checked.returncode == 0, checked.stdout
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("peer", "launcher")):
                module = importlib.import_module(str(node.module))
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


@each_page
def test_json_is_json(page: Path) -> None:
    for text in blocks(page, "json"):
        json.loads(text)


def test_places_in_a_frame_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "wire.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (.*?) \|$", page, re.MULTILINE)
    frame = bytes(encode_frame(Heading(Key(1, 2, 3), 4, 10, 6, 7, 5 * 2**20 + 36), 5, b"", memoryview(bytes(36))))
    shown = {meaning.split(":")[0].split(",")[0]: frame[int(at) : int(at) + int(size)] for at, size, meaning in rows}
    assert shown.pop("magic") == b"DFL2"
    numbers = {name: int.from_bytes(data, "little") for name, data in shown.items() if "xxh3" not in name}
    assert numbers == {
        "number of the payload in the manifest": 4,
        "number of scalars of the message": 6,
        "view": 1,
        "round": 2,
        "step": 3,
        "the collective and the names of its scalars": 10,
        "number of this frame in the message": 5,
        "where in the payload's vector the message begins": 7,
        "bytes of the whole message": 5 * 2**20 + 36,
        "bytes after the header": 36,
        "zeros": 0,
    }
    assert sum(int(size) for _, size, _ in rows) == HEADER.size == struct.calcsize(HEADER.format)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the runs that the pages name have been made."""
    place = tmp_path_factory.mktemp("reader")
    (place / "fed.yaml").write_text("protocol: {name: fibfl, head_epochs: 1}\nrounds: 3\ntrace: true\ndata: digits\n")
    asyncio.run(run_in_process(load_spec(place / "fed.yaml", peers=3), place / "runs" / "digits"))
    for name in ("demo", "fibfl"):
        (place / "runs" / name).symlink_to("digits")
    (place / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "practices.yaml", place / "examples")
    runpy.run_path(str(ROOT / "examples" / "practices.py"))["write"](place / "data")
    spec = load_spec(place / "examples" / "practices.yaml", overrides=["rounds=3"])
    asyncio.run(run_in_process(spec, place / "runs" / "practices"))
    return place


READ_RUNS = [(page, text) for page in PAGES for text in blocks(page, "python") if '"runs/' in text]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("page", "text"), READ_RUNS, ids=lambda one: one.name if isinstance(one, Path) else "")
def test_python_that_reads_a_run_works(
    page: Path, text: str, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number that the block prints is as small as the comment beside it says."""
    monkeypatch.chdir(runs)
    scope: dict[str, object] = {"images": np.zeros((2, 1, 8, 8), np.float32)}
    exec(text, scope)
    printed = capsys.readouterr().out
    if "# about 1e-7" in text:
        assert float(printed) < 1e-6
    elif "names=True" in text:
        assert {*printed.split("'")[1::2]} <= {"krank", "gesund"}
        assert printed.count("'") == 4
    elif "classes" in scope:
        assert len(scope["classes"]) == 2  # type: ignore[arg-type]


def test_the_compose_file_is_the_demo_composed(tmp_path: Path) -> None:
    spec, settings = load_spec(ROOT / "examples" / "demo.yaml"), DockerSettings()
    made = deployment_files.compose_text(spec, ROOT / "docker-compose.yml", settings, None, ROOT)
    assert (ROOT / "docker-compose.yml").read_text(encoding="utf-8") == made, COMPOSE
    services = YAML(typ="safe").load(made)["services"]
    for id, service in services.items():
        for variable, file in (("DFL_FEDERATION", "federation.yaml"), ("DFL_PEER", "peer.yaml")):
            (tmp_path / file).write_text(service["environment"][variable])
        config, there = load_peer(tmp_path / "peer.yaml")
        assert (config.id, config.out) == (id, Path("/runs") / id)
        assert [member.address for member in there.ring] == [f"{id}:7700" for id in services]
        assert there.agreement.content == {**spec.agreement.content, "plaintext": True}


def test_the_manifests_are_those_of_the_demo(tmp_path: Path) -> None:
    demo, kept = str(ROOT / "examples" / "demo.yaml"), ROOT / "deploy" / "kubernetes"
    assert launcher.main(["manifests", demo, "--out", str(tmp_path / "made"), "--set", "plaintext=true"]) == 0
    assert texts(tmp_path / "made") == texts(kept), MANIFESTS


def texts(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md", "docs/glossary.md", "SECURITY.md"])
def test_every_file_that_is_named_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`((?:peer|launcher|tests|proto|deploy|benchmarks|docs|examples)/[\w./-]+)`", text))
    assert named, "the pattern finds what it looks for"
    assert sorted(name for name in named if "NAME" not in name and not (ROOT / name).exists()) == []


def test_the_architecture_can_be_read_in_minutes() -> None:
    words = re.findall(r"\S*\w\S*", (ROOT / "docs" / "architecture.md").read_text())
    assert len(words) <= 1500

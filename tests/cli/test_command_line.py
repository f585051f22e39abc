"""What programs and shells rely on: data alone on stdout, silence on request, versions and completion at once."""

import json
import os
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from errno import ECONNRESET
from importlib.metadata import version
from pathlib import Path

import pytest
from cases import content

from launcher.cli import GROUPS, outcome, parser
from launcher.cli import main as launch
from peer.cli import main as peer


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    file = tmp_path / "fed.yaml"
    file.write_text(json.dumps(content()))
    return file


@pytest.mark.parametrize("main", [launch, peer], ids=["dfl-launch", "dfl-peer"])
def test_the_version_is_that_of_package_and_code(main: object, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])  # type: ignore[operator]
    assert ended.value.code == 0
    assert re.fullmatch(rf"dfl {re.escape(version('dfl'))}\+[0-9a-f]{{8}}\n", capsys.readouterr().out)


FULL, CLOSED = "exec $0 $* > /dev/full", "exec $0 $* >&-"
NO_ROOM, NO_OUTPUT = "the output cannot be written (No space left on device)", "standard output is closed"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("line", "to", "code", "message"),
    [
        ("launcher.cli --version", FULL, 1, f"dfl-launch: {NO_ROOM}"),
        ("peer.cli --version", FULL, 1, f"dfl-peer: {NO_ROOM}"),
        ("peer.cli --check gone.yaml", FULL, 1, f"dfl-peer: {NO_ROOM}"),
        ("launcher.cli list --help", FULL, 1, f"dfl-launch list: {NO_ROOM}"),
        ("launcher.cli list --json .", FULL, 1, f"dfl-launch: stopped: {NO_ROOM}"),
        ("launcher.cli list --json gone", FULL, 2, "dfl-launch: gone: No such file or directory"),
        ("launcher.cli list .", CLOSED, 1, f"dfl-launch: {NO_OUTPUT}"),
        ("launcher.cli --version", CLOSED, 1, f"dfl-launch: {NO_OUTPUT}"),
    ],
)
def test_where_nothing_can_be_printed_one_line_says_so(
    line: str, to: str, code: int, message: str, unbuffered: str, tmp_path: Path
) -> None:
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = ["sh", "-c", to, sys.executable, "-P", "-m", *line.split()]
    ended = subprocess.run(command, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr.count("\n")) == (code, 1), ended.stderr
    assert ended.stderr.startswith(message)


def test_an_error_of_a_connection_is_none_of_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(*_: object) -> int:
        raise ConnectionResetError(ECONNRESET, "Connection reset by peer")

    assert outcome(Namespace(command=fails, json=False, quiet=False, resumes=True)) == 1
    assert capsys.readouterr().err.endswith("Connection reset by peer\n")


@pytest.mark.parametrize(
    ("main", "arguments", "message"),
    [
        (launch, ["rum", "fed.yaml"], "dfl-launch: error: unknown command `rum`; did you mean `run`?"),
        (launch, ["--versoin"], "dfl-launch: error: unknown option `--versoin`; did you mean `--version`?"),
        (launch, ["run", "--pers", "3"], "dfl-launch run: error: unknown option `--pers`; did you mean `--peers`?"),
        (launch, ["watch", "run", "--on", "ssh"], "unknown option `--on`; did you mean `--on` of `dfl-launch run`?"),
        (launch, ["check", "fed.yaml", "--peer=3"], "unknown option `--peer`; did you mean `--peers`?"),
        (launch, ["run", "fed.yaml", "--on", "dokcer"], "unknown --on `dokcer`; did you mean `docker`?"),
        (launch, ["new", "protocl", "mine"], "unknown kind `protocl`; did you mean `protocol`?"),
        (peer, ["--confg", "peer.yaml"], "dfl-peer: error: unknown option `--confg`; did you mean `--config`?"),
    ],
)
def test_what_is_misspelt_is_named_with_what_was_meant(
    main: Callable[[list[str]], int], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    "line", ["logs runs/demo p1 p2 -f", "logs runs/demo -f p1 p2", "logs -f runs/demo p1 p2", "logs runs/demo p1 -f p2"]
)
def test_a_list_may_go_on_after_an_option(line: str) -> None:
    found = parser().parse_args(line.split())
    assert (found.run, found.peers, found.follow) == (Path("runs/demo"), ["p1", "p2"], True)
    found = parser().parse_args(["summary", "a", "--json", "b"])
    assert found.directories == [Path("a"), Path("b")]


def test_what_belongs_to_no_list_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["check", "fed.yaml", "another.yaml"])
    assert "unrecognized arguments: another.yaml" in capsys.readouterr().err


def test_help_lists_every_command_once() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    actions = parser()._subparsers
    assert actions
    known = actions._group_actions[0].choices
    assert known
    assert {*listed} == {*known}, "each command is in one of the GROUPS of launcher/cli.py"
    assert len(listed) == len({*listed})


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["run", "--help"], ["completion", "bash"]])
def test_what_needs_no_training_does_not_import_what_does(arguments: list[str]) -> None:
    look = (
        "import sys; from launcher.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'grpc', 'pydantic'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", look, *arguments], check=True, stdout=subprocess.DEVNULL)


def test_check_as_data(federation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(["check", str(federation), "--json"]) == 0
    printed = capsys.readouterr()
    needs = json.loads(printed.out)
    assert (needs["protocol"], needs["peers"], needs["rounds"], needs["lacking"]) == ("fibfl", 3, 2, [])
    assert needs["model"] == {"name": "mlp", "extractor": 116_352, "head": 1_290, "model": 117_642}
    assert [one["id"] for one in needs["per_peer"]] == ["peer0", "peer1", "peer2"]
    a_round = 2 * 4 * 116_352
    assert needs["bytes"] == {"a_round": a_round, "in_all": 3 * 2 * a_round}
    assert needs["per_peer"][0]["sends"] == {"start": 0, "a_round": a_round, "at_most": a_round}
    assert printed.err == ""


def test_check_in_silence(federation: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(["check", str(federation), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert launch(["check", str(federation), "--quiet", "--set", "rounds=0"]) == 2
    assert capsys.readouterr().err.startswith("dfl-launch: ")


@pytest.mark.parametrize("command", ["check", "run", "status"])
def test_an_error_as_data(federation: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch([command, str(federation), "--json", "--set", "roundz=1"]) == 2
    printed = capsys.readouterr()
    told = json.loads(printed.out)
    assert told["exit_code"] == 2
    assert "did you mean `rounds`?" in told["error"]
    assert printed.err.splitlines()[-1] == f"dfl-launch: {told['error']}"
    assert [path.name for path in federation.parent.iterdir()] == ["fed.yaml"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_is_to_evaluate(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("argcomplete")
    assert launch(["completion", shell]) == 0
    assert "dfl-launch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dfl-launch sta", {"statistics", "status"}),
        ("dfl-launch run --on s", {"ssh", "slurm"}),
        ("dfl-launch leave fed.yaml ", {"peer0", "peer1", "peer2"}),
        ("dfl-launch expel fed.yaml peer0 --by ", {"peer0", "peer1", "peer2"}),
        ("dfl-launch leave fed.yaml --peers 2 p", {"peer0", "peer1", "peer2"}),
        ("dfl-launch leave nothing.yaml p", set()),
        ("dfl-launch run fed.yaml --set protocol.lr", {"protocol.lr="}),
        ("dfl-launch run fed.yaml --set 'protocol=ri", {"protocol=ri-fedavg", "protocol=ring-median"}),
        ("dfl-launch run nothing.yaml --set p", set()),
        ("dfl-launch run --set pro", set()),
    ],
)
def test_how_a_line_may_go_on(federation: Path, line: str, expected: set[str]) -> None:
    """Ask as bash does: it sets what it has so far, and reads from descriptor 8."""
    pytest.importorskip("argcomplete")
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    answer = federation.parent / "answer"
    command = [sys.executable, "-m", "launcher.cli"]
    environment = os.environ | asked | {"_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    subprocess.run(command, env=environment, cwd=federation.parent, check=True, stderr=subprocess.DEVNULL)
    assert {word.strip() for word in answer.read_text().split("\n")} - {""} == expected

"""`--option`, hosts.yaml and more that is said of engines on the command line: one sentence with what is wanted."""

import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from launcher.cli import main
from launcher.engines.base import engine, parsed_options
from launcher.engines.docker import DockerSettings
from launcher.run_files import RunFiles
from peer.spec.loading import load_spec

DEMO = Path(__file__).parents[3] / "examples" / "demo.yaml"


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one sentence, in nobody's words but ours."""
    assert main([*argv]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for foreign in ("Input", "input", "pattern", "^"):
        assert foreign not in said
    return said


@pytest.mark.parametrize(
    ("on", "option", "sentence"),
    [
        ("docker", "memory=8X", "`memory` wants bytes, or a number with k, m or g, such as 800m or 4g (given: "),
        ("docker", "image=", "`image` wants the name of an image, such as dfl or "),
        ("docker", "image=bad image", "`image` wants the name of an image, such as dfl or "),
        ("docker", "gpus=some", "`gpus` wants all, a number from 1 on, or a list such as [0, 1] (given: "),
        ("docker", "gpus=[]", "`gpus` wants all, a number from 1 on, or a list such as [0, 1] (given: [])"),
        ("docker", "subnet=10.99.0.5/24", "`subnet` wants a network's first address and its bits, such as 10.99.0.0/"),
        ("docker", "restarts=-1", "`restarts` wants a number from 0 to 1000, such as 5 (given: -1)"),
        ("docker", "memry=4g", "--on docker: unknown key `memry`; did you mean `memory`?"),
        ("slurm", "memory=4k", "`memory` wants a number with M, G or T, such as 800M or 4G (given: "),
        ("slurm", "cpus=two", "--on slurm: `cpus` wants a whole number from 1 on, such as 4 (given: "),
        ("slurm", "sbatch=--comment='open", "`sbatch` wants arguments of `sbatch` as a shell takes them"),
        ("ssh", "extras=visions", "`extras` wants one or more of encrypted, privacy, tables, vision, such as [tables"),
        ("local", "image=dfl", "--on local: it has no settings, so there is no `image`; leave it out"),
    ],
)
def test_a_wrong_option_is_one_sentence_with_an_example(
    on: str, option: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert sentence in refused(capsys, "run", str(DEMO), "--on", on, "--option", option, "--out", str(out))
    assert not out.exists()


@pytest.mark.parametrize(
    ("on", "option", "expected"),
    [
        ("docker", "memory=8G", "8g"),
        ("docker", "memory=8000000000", "8000000000"),
        ("slurm", "memory=4g", "4G"),
        ("slurm", "memory=800", "800"),
        ("docker", "gpus=[0, GPU-1]", ("0", "GPU-1")),
        ("docker", "gpus=2", 2),
        ("docker", "gpus=all", "all"),
    ],
)
def test_options_are_taken_as_people_write_them(on: str, option: str, expected: object) -> None:
    chosen = engine(on, parsed_options([option])).settings
    assert getattr(chosen, option.partition("=")[0]) == expected
    again = engine(on, chosen.model_dump(mode="json")).settings  # as the run's record has it
    assert again == chosen


@pytest.mark.parametrize("given", ["vision", "[vision]"])
def test_one_extra_needs_no_list(given: str, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("hosts: [{host: north, peers: [peer0]}]\n")
    chosen = engine("ssh", parsed_options([f"hosts={tmp_path}/hosts.yaml", f"extras={given}"]))
    assert chosen.settings.extras == ("vision",)
    assert (
        engine("ssh", chosen.settings.model_dump(mode="json")).settings == chosen.settings
    )  # as the run's record has it


def test_slurm_counts_memory_in_either_case() -> None:
    made = engine("slurm", {"memory": "4g"}).settings.arguments(load_spec(DEMO), RunFiles(Path("/shared/run")))
    assert "--mem-per-cpu=4096M" in made


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (
            "hosts: [{host: north, device: gpu}]",
            ["hosts.yaml:1: `hosts.0.device` wants auto, cpu, cuda or cuda:N; not mps, as Apple's GPUs"],
        ),
        (
            "hosts:\n - host: north\n - host: a b",
            ["hosts.yaml:3: `hosts.1.host` wants what `ssh` takes, such as north "],
        ),
        ("hosts: [{host: north, prot: 1}]", ["unknown key `prot`; did you mean `port`?"]),
        ("hosts: [{host: north, peers: [A B]}]", ["`hosts.0.peers` wants a list of ids of the ring, such as [peer0,"]),
        (
            "hosts: [{host: n, address: 'x:1'}]",
            ["`hosts.0.address` wants a name or an address without a port, such as"],
        ),
        (
            "hosts: [{host: north, port: 0}, {host: 3}]",
            ["`hosts.0.port` wants a port from 1 to", "`hosts.1.host` wants"],
        ),
        ("hosts: [north]", ["`hosts` wants a list of machines, such as [{host: north}] (given: "]),
        ("hosts: 3", ["`hosts` wants a list of machines, such as [{host: north}] (given: 3)"]),
    ],
)
def test_a_wrong_item_of_hosts_yaml_is_told_once(
    text: str, sentences: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hosts.yaml").write_text(text)
    said = refused(capsys, "run", str(DEMO), "--on", "ssh", "--hosts", str(tmp_path / "hosts.yaml"))
    assert said.count(";") == len(sentences) - 1 + sum(sentence.count(";") for sentence in sentences)
    for sentence in sentences:
        assert sentence in said


@pytest.mark.parametrize("given", [["--hosts", "hosts.yaml"], ["--install"]])
def test_hosts_are_for_ssh(given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "run", str(DEMO), *given, "--out", str(tmp_path / "run"))
    assert f"{given[0]} is for peers on hosts by SSH; add `--on ssh`, or leave it out" in said


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            ["compose", "--build", "nowhere"],
            "--build nowhere: there is no deploy/Dockerfile in it; give the directory ",
        ),
        (["compose", "--option", "network=mine"], "--option network: Compose makes a network for the file's own cont"),
        (["compose", "--option", "subnet=10.99.0.0/24"], "--option subnet: Compose makes a network for the file's own"),
        (["compose", "--option", "memory=much"], "--option: `memory` wants bytes, or a number with k, m or g, such as"),
        (["manifests", "--image", "bad image"], "--image wants the name of an image, such as dfl or registry.example"),
        (["manifests", "--image", "dfl:é"], "--image wants the name of an image, such as dfl or registry.example"),
        (["manifests", "--image", ""], "--image wants the name of an image, such as dfl or registry.example.org/dfl:1"),
    ],
)
def test_what_has_no_meaning_in_a_file_is_refused(
    given: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = given
    out = tmp_path / "made"
    assert sentence in refused(capsys, command, str(DEMO), "--set", "plaintext=true", "--out", str(out), *rest)
    assert not out.exists()


@pytest.mark.parametrize(
    "image",
    ["localhost:5000/dfl", "[::1]:5000/dfl:1", "registry.example.org/a/dfl@sha256:" + 64 * "a", "sha256:" + 64 * "b"],
)
def test_images_are_named_as_engines_name_them(image: str) -> None:
    assert DockerSettings(image=image).image == image


def test_a_tag_beyond_ascii_is_none_for_an_engine_either() -> None:
    with pytest.raises(ValidationError, match="image"):
        DockerSettings(image="dfl:é")


def test_an_engine_whose_library_is_missing_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("launcher.engines.ssh")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    said = refused(capsys, "run", str(DEMO), "--on", "ssh", "--hosts", "hosts.yaml")
    assert "--on ssh needs asyncssh; install it with: pip install -c constraints.txt 'dfl[ssh]'" in said

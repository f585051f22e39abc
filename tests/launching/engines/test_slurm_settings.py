"""What `--on slurm` says where there is no Slurm, and what its settings ask of one."""

from pathlib import Path

import pytest

from launcher.cli import main
from launcher.engines import slurm
from launcher.engines.base import Run, engine
from launcher.engines.slurm import PROGRAMS, SlurmSettings, time_limit
from launcher.run_files import RunFiles
from peer.errors import InputError
from peer.spec.loading import load_spec

DEMO = Path(__file__).parents[3] / "examples" / "demo.yaml"


def test_a_machine_without_slurm_is_told_where_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["run", str(DEMO), "--on", "slurm", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "there is no sbatch on this machine; run dfl-launch on a login node" in said
    assert not (tmp_path / "run").exists()


PLAIN = "--set plaintext=true"
NO_CONTROLLER = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
NO_CONFIGURATION = """squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
squeue: error: fetch_config: DNS SRV lookup failed
squeue: fatal: Could not establish a configuration source"""


@pytest.mark.parametrize(
    ("words", "said", "sentence"),
    [
        (
            PLAIN,
            NO_CONTROLLER,
            f"Slurm does not answer (squeue failed: {NO_CONTROLLER}); see what `scontrol ping` says",
        ),
        (
            PLAIN,
            NO_CONFIGURATION,
            "(squeue failed: Could not establish a configuration source); see what `scontrol ping` says",
        ),
        (PLAIN, "", "(squeue failed: exit code 1)"),
        (
            "--device mps",
            NO_CONTROLLER,
            "--device mps: choose auto, cpu, cuda or cuda:N; not mps, as Apple's",
        ),
        (
            "--set plaintext=false",
            NO_CONTROLLER,
            "make certificates with `dfl-launch certs` and give --certs, or write `plaintext: true`",
        ),
    ],
)
def test_a_cluster_that_does_not_answer_is_one_sentence_after_what_needs_no_answer(
    words: str,
    said: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "said").write_text(said)
    for program in slurm.PROGRAMS:
        (tmp_path / program).write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/said >&2\nexit 1\n")
        (tmp_path / program).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "run"
    assert main(["run", str(DEMO), "--on", "slurm", *words.split(), "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, "--ntasks=5 --cpus-per-task=1 --requeue"),
        ({"partition": "gpu", "account": 12, "time": 30}, "--partition=gpu --account=12 --time=30"),
        ({"cpus": 3, "memory": "4G"}, "--cpus-per-task=3 --mem-per-cpu=1366M"),  # rounded up: 4096 / 3
        ({"memory": 800}, "--mem-per-cpu=800M"),
        ({"gpus": 2}, "--gpus-per-task=2"),
        ({}, "--signal=INT@60"),
        ({"warning": 300}, "--signal=INT@300"),
        ({"sbatch": "--qos=high '--comment=two words'"}, "--qos=high|--comment=two words"),
    ],
)
def test_settings_become_arguments_of_sbatch(given: dict[str, object], asked: str) -> None:
    made = SlurmSettings(**given).arguments(load_spec(DEMO), RunFiles(Path("/shared/50%")))  # type: ignore[arg-type]
    expected = asked.split("|") if "|" in asked else asked.split()
    assert set(expected) <= set(made)
    assert "--output=/shared/50%%/.job/log.txt" in made


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        (30, 1800),
        ("0:30", 60),  # Slurm rounds up to minutes
        ("4:00:00", 14_400),
        ("1-2", 93_600),
        ("1-0:0:1", 86_460),
        (0, None),
        ("infinite", None),
    ],
)
def test_a_time_limit_is_read_as_slurm_reads_it(time: int | str, seconds: int | None) -> None:
    assert time_limit(str(time)) == seconds


PARTITIONS = """\
PartitionName=main AllowGroups=ALL Default=YES DefaultTime=NONE MaxTime=UNLIMITED State=UP
PartitionName=debug Default=NO DefaultTime=00:02:00 MaxTime=01:00:00 State=UP
PartitionName=brief Default=NO DefaultTime=NONE MaxTime=00:01:00 State=UP
"""


def test_the_check_refuses_a_time_limit_that_ends_with_the_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PROGRAMS:
        said = f"cat <<END\n{PARTITIONS}END\n" if name == "scontrol" else ""
        (tmp_path / name).write_text(f"#!/bin/sh\n{said}")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    run = Run(load_spec(DEMO, overrides=["plaintext=true"]), RunFiles(tmp_path / "run"))
    refused = "`time` is 2 minutes, and the peers are told to stop 120 seconds before its end; give a longer `time` or"
    with pytest.raises(InputError, match=refused):
        engine("slurm", {"time": 2, "warning": 120}).check(run)
    SlurmSettings(time="2", warning=119).check_time()
    for partition, minutes in (("debug", "2 minutes"), ("brief", "1 minute")):
        with pytest.raises(InputError, match=f"the partition's default time limit is {minutes}, and the peers"):
            SlurmSettings(partition=partition, warning=120).check_time()
    for given in ({}, {"partition": "debug", "sbatch": "-t 60"}, {"partition": "debug", "sbatch": "--qos=q --time=60"}):
        SlurmSettings(warning=120, **given).check_time()


@pytest.mark.parametrize("given", [{"memory": "much"}, {"cpus": 0}, {"queue": "gpu"}, {"sbatch": "--comment='open"}])
def test_wrong_settings_are_named(given: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"`{next(iter(given))}`"):
        engine("slurm", given)

"""Hosts whose clocks differ from the launcher's: a word, and an error where certificates would not be valid by them."""

from pathlib import Path

import pytest
from authority import authority
from cryptography.x509 import DNSName

from launcher.certificates import make_certificates
from launcher.engines.base import Run
from launcher.engines.ssh import clock_problems, seconds_ahead
from launcher.run_files import RunFiles
from peer.errors import FailedError
from peer.spec.loading import load_spec

HOUR = 3600.0
SPEC = "{protocol: fedavg, ring: [{id: peer0, address: '127.0.0.1:7700'}, {id: peer1, address: '127.0.0.1:7701'}]}"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run without certificates; what it says is in `said` beside it."""
    (tmp_path / "federation.yaml").write_text(SPEC)
    return Run(load_spec(tmp_path / "federation.yaml"), RunFiles(tmp_path / "run"))


def noted(run: Run, certs: Path | None, **ahead: float) -> tuple[list[str], list[str]]:
    """What is wrong, and what is only said."""
    said = list[str]()
    problems = clock_problems(Run(run.spec, run.files, certs=certs, say=said.append), ahead)
    return problems, said


def test_a_difference_is_said_where_nothing_depends_on_it(run: Run, tmp_path: Path) -> None:
    make_certificates(run.spec, tmp_path / "certs", days=30)
    for certs in (None, tmp_path / "certs"):
        problems, said = noted(run, certs, alpha=5.0, beta=-20 * 60.0, gamma=2 * HOUR)
        assert not problems
        assert said == [
            "beta's clock is 20 min 0 s behind this machine's; the times in its events and its log are, too",
            "gamma's clock is 2 h 0 min ahead of this machine's; the times in its events and its log are, too",
        ]


def test_a_host_by_whose_clock_a_certificate_is_not_valid_is_an_error(run: Run, tmp_path: Path) -> None:
    (certs := tmp_path / "certs").mkdir()
    ca = authority()  # which backdates by five minutes
    (certs / "ca.pem").write_bytes(ca.shown)
    for id in run.spec.ids:
        ca.issue(DNSName(id)).write(certs, id)
    problems, said = noted(run, certs, alpha=-60.0, beta=-20 * 60.0, gamma=30 * HOUR)
    assert [one.partition(" UTC")[0].rpartition(" on ")[0] or one.partition(" from ")[0] for one in problems] == [
        f"beta's clock is 20 min 0 s behind this machine's, and so its peers could not start ({certs}/peer0.pem: is "
        "valid",
        f"gamma's clock is 30 h 0 min ahead of this machine's, and so its peers could not start ({certs}/peer0.pem: "
        "expired",
    ]
    assert said == ["alpha's clock is 1 min 0 s behind this machine's; the times in its events and its log are, too"]


@pytest.mark.parametrize("there", [None, "noon", -1.0, float("nan"), float("inf"), 1e300])
def test_a_host_that_tells_no_time_is_named_and_ends_nothing_else(there: object) -> None:
    with pytest.raises(FailedError, match="does not tell its time"):
        seconds_ahead(there, asked=100.0, answered=104.0)


@pytest.mark.parametrize(("there", "ahead"), [(99.0, -1.0), (100.0, 0.0), (102.0, 0.0), (104.0, 0.0), (105.0, 1.0)])
def test_the_time_of_the_answer_counts_as_no_difference(there: float, ahead: float) -> None:
    assert seconds_ahead(there, asked=100.0, answered=104.0) == ahead

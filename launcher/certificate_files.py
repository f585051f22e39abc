"""Where the certificates of a federation lie. Those who only name the files need nothing of X.509."""

from pathlib import Path


def certificate_files(directory: Path, id: str) -> dict[str, Path]:
    """Where `make_certificates` put what a peer's `tls` names; absolute paths."""
    base = directory.resolve()
    return {"ca": base / "ca.pem", "cert": base / f"{id}.pem", "key": base / f"{id}.key"}

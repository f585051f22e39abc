"""What a job leaves behind of its peers: their exit codes, once it has decided not to be queued again."""

import json
import shutil
from pathlib import Path

from pydantic import BaseModel

from launcher.run_files import RunFiles
from peer.errors import FailedError
from peer.files import cannot_write, write_atomically
from peer.text import printable


class Codes(BaseModel):
    """DIR/.job/codes.json. restarts: how often Slurm has queued the job again; None: nobody saw the peer's end."""

    rounds: int
    restarts: int
    codes: dict[str, int | None]


class Outcome:
    """The files of the directory `.job`; the job writes them on a node, the launcher reads them here."""

    def __init__(self, files: RunFiles):
        self._path = files.job
        self._heard = 0

    @property
    def log(self) -> Path:
        return self._path / "log.txt"

    @property
    def job(self) -> str | None:
        """The id of the job that was submitted; None if it is not known."""
        try:
            return (self._path / "id").read_text()
        except FileNotFoundError:
            return None

    def submitted(self, id: str) -> None:
        write_atomically(self._path / "id", id.encode())

    def news(self) -> list[str]:
        """The whole lines that the job has printed since the last time."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._heard)
                new = file.read()
        except FileNotFoundError:
            return []
        whole = new[: new.rfind(b"\n") + 1]
        self._heard += len(whole)
        return [printable(line) for line in whole.decode(errors="replace").splitlines()]

    def read(self) -> Codes | None:
        """None until the job has decided."""
        try:
            return Codes.model_validate(json.loads((self._path / "codes.json").read_bytes()))
        except FileNotFoundError:
            return None

    def finished(self, rounds: int) -> bool:
        """Whether every peer has completed so many rounds."""
        codes = self.read()
        return codes is not None and codes.rounds >= rounds and not any(codes.codes.values())

    def last_seen(self, id: str, unseen: int) -> int:
        """The exit code of a peer in a job that could not decide any more; `unseen` if nobody saw the peer's end."""
        try:
            return int((self._path / "exit" / id).read_text())
        except FileNotFoundError:
            return unseen

    def ask_to_stop(self) -> None:
        """So that the job knows that peers which end now are not to be started again. FailedError if it cannot."""
        stop = self._path / "stop"
        try:
            stop.touch()
        except OSError as error:
            raise FailedError(cannot_write(stop, error)) from None

    def forget(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)

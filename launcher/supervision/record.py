"""What started the peers of a run, and how: written beside it, so that `dfl-launch attach` can take them up."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from launcher.engines.base import Engine, Run
from launcher.engines.chosen import engine
from launcher.run_files import RunFiles
from peer.errors import InputError
from peer.files import write_atomically
from peer.reading import SETTINGS, read_plain


class Record(BaseModel):
    """The engine and its settings, and what all peers' configs have alike."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    on: str
    settings: dict[str, Any]
    device: str
    certs: Path | None


def write(engine: Engine[Any], run: Run) -> None:
    settings = engine.settings.model_dump(mode="json")
    record = Record(on=engine.name, settings=settings, device=run.device, certs=run.certs and run.certs.absolute())
    write_atomically(run.files.engine, record.model_dump_json(indent=1).encode())


def read(files: RunFiles) -> Record:
    """InputError where no launcher has begun a run, or its record cannot be read."""
    try:
        return Record.model_validate(json.loads(read_plain(files.engine, SETTINGS)))
    except FileNotFoundError:
        raise InputError(f"{files.path} holds no run that a launcher began; name the directory of one") from None
    except (OSError, ValueError, ValidationError) as error:
        raise InputError(
            f"{files.engine}: cannot be read ({error}); run the federation again by `dfl-launch run`"
        ) from None


def check(files: RunFiles, engine: Engine[Any]) -> None:
    """InputError where another engine began the run, and its peers may still be at work on it."""
    if not files.engine.exists() or files.summary.exists():
        return
    begun = read(files)
    if begun.on != engine.name and engine_of(begun).outlives_launcher:
        raise InputError(
            f"the run in {files.path} was begun by `--on {begun.on}`, whose peers may still run: end them by "
            f"`dfl-launch attach {files.path}` and Ctrl-C, then remove {files.engine}; or choose another --out"
        )


def engine_of(record: Record) -> Engine[Any]:
    return engine(record.on, record.settings)

"""Run in an image: what is in it, as JSON. `rest` are the bytes of all but the base, PyTorch and what PyTorch needs."""

import importlib.metadata
import json
import os
import re
import shutil
from pathlib import Path

HOME = Path("/opt/dfl")


def needed(package: str) -> set[str]:
    found, to_do = set(), [package]
    while to_do:
        name = re.sub(r"[-_.]+", "-", to_do.pop()).lower()
        if name not in found:
            found.add(name)
            try:
                lines = importlib.metadata.requires(name) or ()
            except importlib.metadata.PackageNotFoundError:
                continue
            to_do += [re.match(r"[\w.-]+", line)[0] for line in lines if "extra ==" not in line]
    return found


def size(package: str) -> int:
    try:
        files = importlib.metadata.files(package) or ()
    except importlib.metadata.PackageNotFoundError:
        return 0
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file())


everything = sum(path.lstat().st_size for path in HOME.rglob("*") if path.is_file() and not path.is_symlink())
torch = {name: size(name) for name in needed("torch")}
unwanted = [name for name in ("gcc", "cc", "c++", "ld", "make", "pip") if shutil.which(name)]
unwanted += [
    str(path) for path in HOME.rglob("*") if path.name in (".cache", "pip", "include") and "licenses" not in path.parts
]
print(
    json.dumps(
        {
            "everything": everything,
            "torch": torch["torch"],
            "of_torch": sum(torch.values()) - torch["torch"],
            "rest": everything - sum(torch.values()),
            "user": os.getuid(),
            "unwanted": unwanted,
        }
    )
)

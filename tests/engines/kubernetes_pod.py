"""A container for tests: a process that sees the files of this machine, and its own volumes where a pod has them.

unshare --mount python kubernetes_pod.py '{"root": DIR, "mounts": {"/runs": DIR, ...}, "hosts": FILE}' COMMAND...
"""

import json
import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    asked, command = json.loads(sys.argv[1]), sys.argv[2:]
    root = Path(asked["root"])
    root.mkdir()
    mount("--make-rprivate", "/")
    mount("-t", "tmpfs", "tmpfs", str(root))
    for entry in Path("/").iterdir():
        if entry.is_symlink():
            (root / entry.name).symlink_to(entry.readlink())
        elif entry.is_dir() and entry.name != "etc":
            bind(entry, root / entry.name)
    (root / "etc").mkdir()
    bind(Path("/etc"), root / ".etc")
    for entry in Path("/etc").iterdir():
        if entry.name not in ("hosts", "dfl"):
            (root / "etc" / entry.name).symlink_to(f"/.etc/{entry.name}")
    (root / "etc" / "hosts").write_text(Path(asked["hosts"]).read_text())
    for there, here in asked["mounts"].items():
        bind(Path(here), root / there.lstrip("/"))
    os.chroot(root)
    os.chdir("/runs")
    os.execv(command[0], command)


def bind(here: Path, there: Path) -> None:
    there.mkdir(exist_ok=True)
    mount("--rbind", str(here), str(there))


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    main()

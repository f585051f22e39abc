"""Made control groups: what the kernel would show of them, as files."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Groups:
    """`proc` is what /proc/self would be; file systems of groups are mounted below `top`."""

    top: Path
    mounts: list[str] = field(default_factory=list)
    of_process: list[str] = field(default_factory=list)

    @property
    def proc(self) -> Path:
        return self.top / "proc"

    def mount(self, name: str, kind: str, options: str = "rw", root: str = "/") -> Path:
        """A file system of groups, seen from `root` on, at a path with a space in it."""
        place = self.top / "sys fs" / name
        place.mkdir(parents=True)
        told = str(place).replace(" ", r"\040")
        number = 30 + len(self.mounts)
        self.mounts.append(f"{number} 23 0:{number} {root} {told} rw,nosuid shared:9 - {kind} {kind} {options}")
        self._write()
        return place

    def enter(self, line: str) -> None:
        """A line of /proc/self/cgroup."""
        self.of_process.append(line)
        self._write()

    def _write(self) -> None:
        self.proc.mkdir(exist_ok=True)
        root = "23 1 8:1 / / rw,relatime - ext4 /dev/root rw"
        (self.proc / "mountinfo").write_text("\n".join([root, *self.mounts]) + "\n")
        (self.proc / "cgroup").write_text("\n".join(self.of_process) + "\n")


def group(place: Path, **files: str | int) -> None:
    """A group with these files; an underscore in pairs is a dot: memory__max."""
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (place / name.replace("__", ".")).write_text(f"{content}\n")

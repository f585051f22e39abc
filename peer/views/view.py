from dataclasses import dataclass
from collections.abc import Collection
@dataclass(frozen=True)
class View:
    number: int
    members: tuple[str, ...]
    first: int
    planned: bool = False
    entrants: tuple[tuple[str, int], ...] = ()
    reason: str = ""
    def is_quorum(self, ids: Collection[str]) -> bool:
        count = 2 * len({*ids} & {*self.members})
        return count > len(self.members) or (count == len(self.members) and self.members[0] in ids)

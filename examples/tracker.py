"""A tracker of one's own: each peer's rounds as lines of a CSV file. tracker: "tracker:Table" """

from pathlib import Path


class Table:
    def __call__(self, event):
        if event.name == "started":
            self.file = Path(f"{event.federation}-{event.id}.csv")
        elif event.name == "round":
            with self.file.open("a") as table:
                print(event.round, event.loss, event.accuracy.get("matched"), sep=",", file=table)

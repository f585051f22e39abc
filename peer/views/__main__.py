"""Prints how the next view is decided: `python -m peer.views`."""

from peer.views.tables import tables

if __name__ == "__main__":
    print(tables(), end="")

"""Prints how the next view is decided: `python -m peer.views`."""

from peer.views.tables import acceptor_table, answer_table, proposal_table

if __name__ == "__main__":
    print("\n".join([acceptor_table(), answer_table(), proposal_table()]), end="")

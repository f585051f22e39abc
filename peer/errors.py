"""The errors a person can cause or must act on; each message is one sentence that says the way out."""


class InputError(Exception):
    """Wrong input: a config, data file, address or directory. The process exits with 2 and creates nothing."""


class FailedError(Exception):
    """The run cannot go on: a neighbour never came, the disk is full, the model diverged. Exit 1."""

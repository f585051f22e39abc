"""How many files a process may have open: a peer with hundreds of links needs more than the usual 1,024."""

import resource

WANTED = 65536


def raise_file_limit() -> None:
    """Raises the soft limit of open files to the hard limit, but no higher than 65,536."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))

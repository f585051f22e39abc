"""In this directory the fork server's peers can be told to die at an event, or to lie."""

import pytest
from real_peers import Nursery


@pytest.fixture(scope="session")
def fork_server(accidents: Nursery) -> Nursery:
    return accidents

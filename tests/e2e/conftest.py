"""Control planes for the end-to-end tests. Each is real, and starting one takes seconds, so tests share them."""

import os
from collections.abc import Iterator

import pytest
from thunderfleet_localcluster.cluster import Cluster, remove

# A fleet has at least one machine; nothing runs on this one.
IDLE_FLEET = "machines: [{name: idle-1, kind: linux}]\n"


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """A cluster without Nodes: for what the API server alone decides."""
    cluster = Cluster.start(IDLE_FLEET, name=f"e2e-idle-{os.getpid()}", join=False)
    try:
        yield cluster
    finally:
        cluster.stop()
        remove(cluster.folder, everything=True)

"""A node for tests of pods."""

import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from thunderfleet_kubelet.containers import leftovers

from tests.support.pods import World


@pytest_asyncio.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    # A developer's /tmp may have a million files of which no pod has one.
    monkeypatch.setattr(leftovers, "SHARED_FOLDERS", ())
    # Not one of pytest's folders: another run of pytest closes those to the containers' user at any moment.
    with tempfile.TemporaryDirectory(prefix="kubelet-", ignore_cleanup_errors=True) as name:
        path = Path(name)
        os.chmod(path, 0o755)
        image = path / "image"
        (image / "bin").mkdir(parents=True)
        world = World(path / "node", image)
        world.root.mkdir()
        yield world
        manager = world.managers[-1] if world.managers else await world.boot()
        await manager.stop(end_pods=True)
        assert world.processes() == []

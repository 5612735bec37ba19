"""What pods leave behind: deletions that take long delay nothing else, and which files may be deleted."""

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from thunderfleet_kubelet.containers import leftovers
from thunderfleet_kubelet.containers.folder import PodFolder

from tests.support.pods import USERS, World, sh
from tests.support.waiting import ASYNC_WAIT_SECONDS, until_async

as_root = pytest.mark.skipif(USERS is None, reason="only root can start programs as somebody else")


class Gate:
    """Deletions of paths with ``hog`` in their names begin, and continue when ``open`` is called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open, self._begun = folder / "open", folder / "begun"
        self._begun.mkdir()
        wait = f"touch {self._begun}/$$; while ! test -e {self._open}; do sleep 0.02; done"
        script = f'case "$*" in *hog*) {wait};; esac; exec "$@" 2>&1'
        monkeypatch.setattr(leftovers, "_LAST_WORDS", ("/bin/sh", "-c", script, "sh"))

    @property
    def begun(self) -> list[int]:
        """The processes of the deletions that have begun."""
        return sorted(int(name) for name in os.listdir(self._begun))

    def open(self) -> None:
        self._open.touch()


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(tmp_path, monkeypatch)
    yield made
    made.open()


def folders(root: Path, *names: str) -> list[Path]:
    for name in names:
        (root / name / "more").mkdir(parents=True)
    return [root / name for name in names]


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_long_deletions_take_no_threads_of_other_work(tmp_path: Path, gate: Gate) -> None:
    """A pod can leave millions of files; probes, logs and status of all pods use the default threads."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    paths = folders(tmp_path, *(f"hog{number}" for number in range(3 * leftovers.AT_ONCE)))
    deletions = [asyncio.create_task(leftovers.delete(path)) for path in paths]
    await until_async(lambda: len(gate.begun) == leftovers.AT_ONCE)
    async with asyncio.timeout(ASYNC_WAIT_SECONDS):
        assert await asyncio.to_thread(lambda: "done") == "done"
    assert len(gate.begun) == leftovers.AT_ONCE, "no more at once"
    gate.open()
    await asyncio.gather(*deletions)
    assert not any(path.exists() for path in paths)


async def test_small_deletions_do_not_wait_for_long_ones(tmp_path: Path, gate: Gate) -> None:
    (quick, _), *longer = leftovers.TURNS
    turns = [(quick, 0.2), *longer]
    *hogs, small = folders(tmp_path, *(f"hog{number}" for number in range(2 * leftovers.AT_ONCE)), "small")
    deletions = [asyncio.create_task(leftovers.delete(path, turns)) for path in hogs]
    await until_async(lambda: len(gate.begun) >= leftovers.AT_ONCE)
    async with asyncio.timeout(ASYNC_WAIT_SECONDS):
        await leftovers.delete(small, turns)
    assert not small.exists() and not any(one.done() for one in deletions)
    gate.open()
    await asyncio.gather(*deletions)
    assert not any(path.exists() for path in hogs)


async def test_a_deletion_ends_with_its_caller(tmp_path: Path, gate: Gate) -> None:
    """A kubelet that stops must not wait until millions of files are deleted."""
    (hog,) = folders(tmp_path, "hog")
    deletion = asyncio.create_task(leftovers.delete(hog))
    await until_async(lambda: gate.begun)
    deletion.cancel()
    await asyncio.wait({deletion}, timeout=ASYNC_WAIT_SECONDS)
    assert deletion.cancelled()
    await until_async(lambda: not any(running(pid) for pid in gate.begun))
    assert hog.exists()


async def test_a_deletion_that_needs_too_long_is_an_error(tmp_path: Path, gate: Gate) -> None:
    (hog,) = folders(tmp_path, "hog")
    with pytest.raises(TimeoutError, match="rm did not end in time"):
        await leftovers.delete(hog, [(host, 0.05) for host, _ in leftovers.TURNS])


# Pods that the node does not have


def half_deleted(world: World, uid: str) -> PodFolder:
    """The folder of a pod that a kubelet has begun to delete."""
    folder = PodFolder(world.root / "pods" / uid)
    folder.create(USERS[3] if USERS else None)
    (folder.path / "empty" / "e").mkdir()
    return folder


async def test_other_pods_start_while_the_rest_of_a_deleted_one_is_deleted(world: World, gate: Gate) -> None:
    left = half_deleted(world, "hog")
    manager = await world.boot()
    await until_async(lambda: gate.begun)
    world.api.add_pod("next", {"containers": [sh("true")]})
    await world.phase("next", "Succeeded")
    if USERS:
        assert manager._users.own(left) == USERS[3], "not free before the files are gone"
    gate.open()
    await world.until(lambda: not left.path.exists())
    await world.until(lambda: manager._users.own(left) is None)


async def test_a_pod_waits_for_the_deletion_of_what_is_in_its_folder(world: World, gate: Gate) -> None:
    """A kubelet that was killed when it accepted the pod has left a folder without a record of it."""
    left = half_deleted(world, "hog")
    await world.boot()
    world.api.add_pod("again", {"containers": [sh("true")]}, uid="hog")
    await until_async(lambda: gate.begun)
    assert not (left.path / "pod.json").exists()
    gate.open()
    await world.phase("again", "Succeeded")


async def test_all_pods_have_ended_when_what_others_left_is_deleted(world: World, gate: Gate) -> None:
    left = half_deleted(world, "hog")
    manager = await world.boot()
    ending = asyncio.create_task(manager.stop(end_pods=True))
    await until_async(lambda: gate.begun)
    assert not ending.done()
    gate.open()
    await ending
    assert not left.path.exists()

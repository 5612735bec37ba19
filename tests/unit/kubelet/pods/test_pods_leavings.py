"""What pods leave behind: deletions that take long delay nothing else, and which files may be deleted."""

import asyncio
import errno
import os
import pwd
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from thunderfleet_kubelet.containers import leftovers
from thunderfleet_kubelet.containers.folder import PodFolder
from thunderfleet_kubelet.pods import leavings
from thunderfleet_kubelet.pods.leavings import CHOSEN
from thunderfleet_kubelet.shim import processes

from tests.support.pods import USERS, World, sh
from tests.support.waiting import ASYNC_WAIT_SECONDS, until_async

as_root = pytest.mark.skipif(USERS is None, reason="only root can start programs as somebody else")


Json = dict[str, Any]


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
    (quick, _), (long, _), *_ = leftovers.TURNS
    turns = [(quick, 2.0), (long, 1000.0)]
    *hogs, small = folders(tmp_path, *(f"hog{number}" for number in range(2 * leftovers.AT_ONCE)), "small")
    deletions = [asyncio.create_task(leftovers.delete(path, turns)) for path in hogs]
    # Each in its first turn, and as many as possible in the second.
    await until_async(lambda: len(gate.begun) == 3 * leftovers.AT_ONCE)
    async with asyncio.timeout(ASYNC_WAIT_SECONDS):
        await leftovers.delete(small, [(quick, 1000.0)])
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
    world.api.add_pod("other", {"containers": [sh("true")]})
    await world.phase("other", "Succeeded")
    assert gate.begun and not (left.path / "pod.json").exists()
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


@as_root
async def test_a_pod_keeps_its_user_until_its_files_are_gone_also_for_the_next_kubelet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = True
    delete_outside = leftovers.delete_outside

    async def sometimes(*arguments: Any) -> None:
        if fails:
            raise OSError(errno.EBUSY, "busy")
        await delete_outside(*arguments)

    monkeypatch.setattr(leftovers, "delete_outside", sometimes)
    manager = await world.boot()
    world.api.add_pod("ended", {"containers": [sh("true")]})
    await world.phase("ended", "Succeeded")
    folder = world.folder("ended")
    await world.until(lambda: not (folder.path / "containers/main/sandbox").exists())
    await manager.stop(end_pods=False)
    manager = await world.boot()
    assert manager._users.own(folder) is not None
    fails = False
    world.api.delete_pod("ended")
    await world.until(lambda: not folder.path.exists())
    assert manager._users.own(folder) is None


# Users that specs choose


USER = CHOSEN[-1] - os.getpid() % 30_000
"""Hardly a user of another run of these tests on this machine."""


@pytest.fixture
def shared(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which every user can create files."""
    folder = world.root / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(leftovers, "SHARED_FOLDERS", (str(folder),))
    return folder


def writer(shared: Path, *names: str, then: str = "", user: int = USER) -> Json:
    """A container that leaves these files."""
    script = "".join(f"mkdir -p $(dirname {shared}/{name}); echo x > {shared}/{name}; " for name in names)
    return sh(script + then, securityContext={"runAsUser": user})


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


async def closed(world: World, name: str) -> None:
    """Waits until only the log is left of an ended pod."""
    await world.until(lambda: world.folder(name).path.stat().st_mode & 0o777 == 0o700)


@as_root
async def test_files_of_a_chosen_user_end_with_its_pod(world: World, shared: Path) -> None:
    """Otherwise they would belong to the next pod that chooses the user, and an evicted pod would not free the disk."""
    await world.boot()
    world.api.add_pod("writes", {"containers": [writer(shared, "file", "folder/deep/file")]})
    await world.phase("writes", "Succeeded")
    await world.until(lambda: names(shared) == [])
    world.api.add_pod("again", {"containers": [writer(shared, "file", then="sleep 600")]})
    await world.phase("again", "Running")
    await world.until(lambda: names(shared) == ["file"])
    world.api.delete_pod("again", grace=0)
    await world.until(lambda: names(shared) == [])
    assert "FilesLeft" not in world.api.reasons()


@as_root
async def test_files_that_did_not_change_while_a_pod_had_the_user_stay(world: World, shared: Path) -> None:
    before, other = shared / "before" / "file", shared / "other"
    before.parent.mkdir()
    for path in (before, other):
        path.touch()
    for path in (before.parent, before):
        os.chown(path, USER, USER)
    await world.boot()
    world.api.add_pod("writes", {"containers": [writer(shared, "before/new", "mine")]})
    await world.phase("writes", "Succeeded")
    await closed(world, "writes")
    assert names(shared) == ["before", "before/file", "other"]


@as_root
async def test_the_last_pod_with_a_user_deletes_what_all_have_left(world: World, shared: Path) -> None:
    manager = await world.boot()
    world.api.add_pod("first", {"containers": [writer(shared, "first", then="sleep 600")]})
    await world.phase("first", "Running")
    await world.until(lambda: names(shared) == ["first"])
    world.api.add_pod("second", {"containers": [writer(shared, "second", then="sleep 600")]})
    await world.phase("second", "Running")
    await world.until(lambda: names(shared) == ["first", "second"])
    folder = world.folder("first").path
    world.api.delete_pod("first", grace=0)
    await world.until(lambda: not folder.exists())
    assert names(shared) == ["first", "second"]
    await manager.stop(end_pods=False)
    await world.boot()
    world.api.delete_pod("second", grace=0)
    await world.until(lambda: names(shared) == [])
    assert "FilesLeft" not in world.api.reasons()


@as_root
@pytest.mark.parametrize(
    ("why", "user"),
    [
        ("account", USER),
        ("hostPath", USER),
        ("process", USER),
        ("earlier", USER),
        ("person", 501),
        ("nobody", 65534),
        ("high", 70_000),
    ],
    # Not the number, which differs from process to process.
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_files_that_may_not_be_the_pods_stay(
    world: World, shared: Path, monkeypatch: pytest.MonkeyPatch, why: str, user: int
) -> None:
    manager = await world.boot()
    spec: Json = {"containers": [writer(shared, "file", then="sleep 600", user=user)]}
    if why == "hostPath":
        spec["volumes"] = [{"name": "v", "hostPath": {"path": str(shared)}}]
    if why == "account":
        monkeypatch.setattr(pwd, "getpwuid", lambda number: SimpleNamespace(pw_name=f"person{number}", pw_gid=number))
    world.api.add_pod("writes", spec)
    await world.phase("writes", "Running")
    await world.until(lambda: names(shared) == ["file"])
    folder = world.folder("writes")
    if why == "earlier":
        await manager.stop(end_pods=False)
        for record in folder.users.iterdir():
            record.unlink()
        folder.users.rmdir()
        manager = await world.boot()
    held: list[subprocess.Popen[bytes]] = []
    if why == "process":
        held.append(sleeper(user))
    try:
        world.api.delete_pod("writes", grace=0)
        await world.until(lambda: not folder.path.exists())
        assert names(shared) == ["file"]
        expected = {
            "account": f"the user is the account person{user} of this machine",
            "hostPath": leavings.HOST_PATH,
            "process": f"process {held[0].pid if held else ''} runs as this user",
            "earlier": leavings.EARLIER,
        }

        def said() -> list[str]:
            return [event["message"] for event in world.api.events if event["reason"] == "FilesLeft"]

        if why in expected:
            await world.until(said)
        assert [message.endswith(expected[why]) for message in said()] == ([True] if why in expected else [])
        assert all(one.poll() is None for one in held)
    finally:
        for one in held:
            one.kill()
            one.wait()


@as_root
@pytest.mark.parametrize("last", ["plain", "with-path"])
async def test_a_host_path_of_any_pod_keeps_the_files_of_all(world: World, shared: Path, last: str) -> None:
    """Whichever of the pods with the user ends last deletes what all have left."""
    manager = await world.boot()
    path = {"volumes": [{"name": "v", "hostPath": {"path": str(shared)}}]}
    for name, more in (("plain", {}), ("with-path", path)):
        world.api.add_pod(name, {"containers": [writer(shared, name, then="sleep 600")], **more})
        await world.phase(name, "Running")
    await world.until(lambda: names(shared) == ["plain", "with-path"])
    for name in sorted(("plain", "with-path"), key=lambda name: name == last):
        folder = world.folder(name).path
        world.api.delete_pod(name, grace=0)
        await world.until(lambda folder=folder: not folder.exists())  # type: ignore[misc]
        await manager.stop(end_pods=False)
        manager = await world.boot()
    assert names(shared) == ["plain", "with-path"]


@as_root
async def test_empty_folders_are_deleted_too(world: World, shared: Path) -> None:
    await world.boot()
    world.api.add_pod("makes", {"containers": [sh(f"mkdir -p {shared}/a/b", securityContext={"runAsUser": USER})]})
    await world.phase("makes", "Succeeded")
    await closed(world, "makes")
    assert names(shared) == []


@pytest.mark.parametrize("text", ["", "may"])
def test_a_record_that_was_cut_off_keeps_the_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "1500").write_text(text)
    assert leavings._why(tmp_path / "1500") == (text or leavings.CUT_OFF)
    (tmp_path / "1500").write_text(leavings.MAY_DELETE)
    assert leavings._why(tmp_path / "1500") == ""


async def test_processes_that_ps_does_not_list_are_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path != "/proc/self/status" and exists(path))
    monkeypatch.setattr(processes, "ask_ps", lambda arguments: b"")
    with pytest.raises(TimeoutError, match="ps did not list"):
        await leftovers.processes_of(USER)
    with pytest.raises(TimeoutError, match="ps did not list"):
        await leftovers.end_processes(USER)
    assert processes.of_user(USER) == []


def sleeper(user: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], user=user, group=user, extra_groups=[], cwd="/", start_new_session=True)


@as_root
async def test_a_container_waits_while_files_of_its_user_are_deleted(
    world: World, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own files would be deleted with them."""
    begun, may_end = asyncio.Event(), asyncio.Event()
    delete = leftovers.delete_changed_outside

    async def slow(*arguments: Any) -> None:
        begun.set()
        await may_end.wait()
        await delete(*arguments)

    monkeypatch.setattr(leftovers, "delete_changed_outside", slow)
    monkeypatch.setattr(leavings, "CLEARING_SECONDS", 0.05)
    await world.boot()
    world.api.add_pod("first", {"containers": [writer(shared, "first")]})
    await begun.wait()
    world.api.add_pod("second", {"containers": [writer(shared, "second", then="sleep 600")]})
    await world.until(lambda: any("are still being deleted" in event["message"] for event in world.api.events))
    assert names(shared) == ["first"]
    may_end.set()
    await closed(world, "first")
    world.managers[-1].settings = world.settings
    await world.phase("second", "Running")
    await world.until(lambda: names(shared) == ["second"])


@as_root
async def test_records_that_cannot_be_made_do_not_allow_a_deletion(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes an empty file, which would mean that nothing keeps the files."""
    manager = await world.boot()
    folder = PodFolder(world.root / "pods" / "a")
    folder.create(None)

    def full(path: Path, text: str) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="full"):
        await manager._leavings.take(folder, USER, host_path=True)
    assert list(folder.users.iterdir()) == []


def test_no_account_of_this_machine_is_free(tmp_path: Path) -> None:
    assert leavings._account(0) == f"the user is the account {pwd.getpwuid(0).pw_name} of this machine"
    assert not any(number in CHOSEN for number in (0, 1, 499, 501, 999, 65534, 65535, 1_900_000_000))

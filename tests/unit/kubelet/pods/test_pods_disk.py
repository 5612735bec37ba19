"""A full disk: thresholds, the order of evictions, and a node on a small file system of its own."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_kubelet import disk, pressure
from thunderfleet_kubelet.containers import leftovers
from thunderfleet_kubelet.disk import DiskWatch
from thunderfleet_kubelet.pods import disk_usage, evictor
from thunderfleet_kubelet.pods.decide import admission, eviction
from thunderfleet_kubelet.pods.decide.eviction import Usage, over_limit, quantity
from thunderfleet_kubelet.pressure import FileSystem, Met
from thunderfleet_lib.host.hostcmd import Host
from thunderfleet_lib.quantity import parse_quantity

from tests.support.pods import World, sh, state

Json = dict[str, Any]
MIB = 1024**2
GIB = 1024**3


def container(name: str = "main", **resources: Json) -> Json:
    return {"name": name, "resources": resources}


def pod(name: str = "p", priority: int = 0, *containers: Json, **spec: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "n", "uid": f"uid-{name}"},
        "spec": {"priority": priority, "containers": list(containers or [container()]), **spec},
    }


def storage(size: str) -> Json:
    return {"ephemeral-storage": size}


# Thresholds


@pytest.mark.parametrize(
    ("settings", "free", "capacity", "expected"),
    [
        ({}, 101 * GIB, 1000 * GIB, []),
        ({}, 99 * GIB, 1000 * GIB, [("nodefs.available", 100 * GIB)]),
        ({"nodefs.available": "5Gi"}, 99 * GIB, 1000 * GIB, []),
        ({"nodefs.available": "5Gi"}, 4 * GIB, 1000 * GIB, [("nodefs.available", 5 * GIB)]),
        ({"nodefs.available": "0%"}, 0, 1000 * GIB, []),
        ({}, 0, 0, []),
    ],
)
def test_thresholds(settings: dict[str, str], free: int, capacity: int, expected: list[tuple[str, int]]) -> None:
    found = pressure.met(pressure.thresholds(settings), {"nodefs": FileSystem(free, capacity)})
    assert [(one.threshold.signal, one.limit) for one in found] == expected
    assert all(one.available == free for one in found)


def test_inodes_and_the_file_system_of_images_count_too() -> None:
    systems = {"nodefs": FileSystem(GIB, GIB, 4, 100), "imagefs": FileSystem(14, 100, 50, 100)}
    found = pressure.met(pressure.thresholds({}), systems)
    assert [(one.threshold.signal, one.limit, one.available) for one in found] == [
        ("nodefs.inodesFree", 5, 4),
        ("imagefs.available", 15, 14),
    ]


def test_what_causes_eviction_is_not_allocatable() -> None:
    assert pressure.reserved(pressure.thresholds({}), 1000) == 100
    assert pressure.reserved(pressure.thresholds({"nodefs.available": "70"}), 1000) == 70


def test_pressure_outlives_its_cause_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, free = [0.0], [5]
    monkeypatch.setattr(disk, "file_system", lambda path: FileSystem(free[0], 100))
    watch = DiskWatch(tmp_path, [], pressure.thresholds({}), 300, clock=lambda: now[0])
    assert (watch.look().pressure, len(watch.look().met)) == (True, 1)
    free[0], now[0] = 50, 299.0
    assert (watch.look().pressure, watch.look().met) == (True, ())
    assert [one.signal for one in watch.look().why] == ["nodefs.available"]
    now[0] = 301.0
    assert watch.look().pressure is False


def test_pressure_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert DiskWatch(tmp_path / "none", [], pressure.thresholds({}), 300).look().pressure is None


def test_images_on_a_file_system_that_cannot_be_written_to_do_not_fill_it(tmp_path: Path) -> None:
    assert set(DiskWatch(tmp_path, [Path("/proc")], (), 0)._read() or {}) >= {"nodefs"}
    assert set(DiskWatch(tmp_path, [tmp_path, tmp_path / "none"], (), 0)._read() or {}) == {"nodefs"}


# Limits


@pytest.mark.parametrize(
    ("item", "usage", "expected"),
    [
        (pod(), Usage({"e": 10 * GIB}, {"main": 10 * GIB}), ""),
        (pod(volumes=[{"name": "e", "emptyDir": {"sizeLimit": "1Mi"}}]), Usage({"e": MIB}), ""),
        (
            pod(volumes=[{"name": "e", "emptyDir": {"sizeLimit": "1Mi"}}]),
            Usage({"e": MIB + 1}),
            'Usage of EmptyDir volume "e" exceeds the limit "1Mi". ',
        ),
        (pod(volumes=[{"name": "e", "emptyDir": {"sizeLimit": "0"}}]), Usage({"e": MIB}), ""),
        (
            pod("p", 0, container(limits=storage("1Mi"))),
            Usage({"e": MIB}, {"main": 1}),
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ",
        ),
        (
            pod("p", 0, container(limits=storage("1Mi")), container("other", limits=storage("9Mi"))),
            Usage({}, {"main": 2 * MIB}),
            'Container main exceeded its local ephemeral storage limit "1Mi". ',
        ),
        (pod("p", 0, container(limits=storage("1Mi")), container("other", limits=storage("9Mi"))), Usage({"e": 9 * MIB}), ""),
    ],
)
def test_limits_of_a_spec(item: Json, usage: Usage, expected: str) -> None:
    assert over_limit(item, usage) == expected
    assert eviction.has_limits(item) or not expected


# Order and messages


def test_who_leaves_first() -> None:
    above = pod("above")
    far_above = pod("far-above")
    low = pod("low", -5)
    within = pod("within", -9, container(requests=storage("5Gi")))
    critical = pod("critical", 2_000_000_000)
    pods = [
        (within, Usage({}, {"main": 4 * GIB})),
        (critical, Usage({}, {"main": 90 * GIB})),
        (above, Usage({}, {"main": MIB})),
        (far_above, Usage({"e": GIB})),
        (low, Usage({}, {"main": 1})),
        (pod("many-files"), Usage(unknown=True)),
    ]
    names = [item["metadata"]["name"] for item, _ in eviction.ranked(pods)]
    assert names == ["low", "many-files", "far-above", "above", "within"]


def test_the_message_is_that_of_kubernetes() -> None:
    (threshold, inodes, *_) = pressure.thresholds({})
    item = pod("p", 0, container(requests=storage("1Mi")), container("b", requests=storage("9Mi")))
    usage = Usage({}, {"main": 3 * MIB, "b": MIB})
    assert eviction.pressure_message(item, usage, Met(threshold, 100 * GIB, 5000)) == (
        "The node was low on resource: ephemeral-storage. Threshold quantity: 100Gi, available: 5000. "
        "Container main was using 3Mi, request is 1Mi, has larger consumption of ephemeral-storage. "
    )
    assert eviction.pressure_message(item, usage, Met(inodes, 50, 4)) == (
        "The node was low on resource: inodes. Threshold quantity: 50, available: 4. "
    )


@given(st.integers(min_value=0, max_value=2**60))
def test_a_quantity_is_exact(size: int) -> None:
    assert parse_quantity(quantity(size)) == size


def test_only_critical_pods_are_taken_in_spite_of_pressure() -> None:
    rejection = admission.reject(pod(), [], "node", {}, {}, disk_pressure=True)
    assert rejection == ("Evicted", "Pod was rejected: The node had condition: [DiskPressure]. ")
    assert admission.reject(pod("p", 2_000_000_000), [], "node", {}, {}, disk_pressure=True) is None


# Use


async def test_use_is_what_is_allocated_and_links_are_not_followed(tmp_path: Path) -> None:
    big, small = tmp_path / "big", tmp_path / "small"
    for folder in (big, small):
        folder.mkdir()
    (big / "file").write_bytes(os.urandom(MIB))
    (small / "link").symlink_to(big)
    (small / "sparse").touch()
    os.truncate(small / "sparse", 2**30)
    (big / "again").hardlink_to(big / "file")
    found = await disk.used([big, small, tmp_path / "none"])
    assert set(found) == {big, small}
    assert MIB <= found[big] < 2 * MIB
    assert found[small] < MIB


def make_deep(folder: Path) -> None:
    """A tree whose paths are longer than the kernel takes, with 1 MiB at its end."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deeper", dir_fd=here)
        below = os.open("deeper", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    with os.fdopen(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here), "wb") as file:
        file.write(os.urandom(MIB))
    os.close(here)


async def test_a_very_deep_tree_is_measured_and_deleted(tmp_path: Path) -> None:
    make_deep(tmp_path)
    assert (await disk.used([tmp_path]))[tmp_path] >= MIB
    await leftovers.delete(tmp_path / "deeper")
    assert os.listdir(tmp_path) == []


async def test_a_measurement_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "du"
    script.write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    script.chmod(0o755)
    monkeypatch.setattr(disk, "_HOST", Host((tmp_path,)))
    with pytest.raises(TimeoutError, match=r"du did not answer within 0.2 s"):
        await disk.used([tmp_path], seconds=0.2)


async def test_a_measurement_counts_the_rest_when_something_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "du"
    script.write_text('#!/bin/sh\nprintf "8\\t%s\\n" "$4"\necho "du: cannot access x: No such file or directory" >&2\nexit 1\n')
    script.chmod(0o755)
    monkeypatch.setattr(disk, "_HOST", Host((tmp_path,)))
    assert await disk.used([tmp_path]) == {tmp_path: 8192}


async def test_statistics_have_what_each_pod_uses_and_measure_it_once_a_minute(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.boot()
    write = 'dd if=/dev/urandom of="$HOME/{}" bs=64k count={}; '
    script = write.format("e/f", 32) + write.format("g", 16) + "echo wrote; sleep 600"
    world.api.add_pod("writes", {**SHARED, "containers": [sh(script, **MOUNT)]})
    log = world.folder("writes").log("main", 0)
    await world.until(lambda: log.exists() and "wrote" in log.read_text(), 60)
    uid = world.api.pod("writes")["metadata"]["uid"]
    queries = world.managers[-1].queries
    used = (await queries.disk_usage())[uid]
    assert 32 * 64 * 1024 <= used.volumes["e"] < 40 * 64 * 1024
    assert 16 * 64 * 1024 <= used.containers["main"] - used.logs["main"] < 20 * 64 * 1024
    assert 0 < used.logs["main"] < 64 * 1024

    async def never(paths: object) -> Mapping[Path, int]:
        raise AssertionError("measured twice in a minute")

    monkeypatch.setattr(disk, "used", never)
    assert (await queries.disk_usage())[uid] == used

    gate = asyncio.Event()

    async def slow(paths: Iterable[Path]) -> Mapping[Path, int]:
        await gate.wait()
        return {}

    # What takes too long is what it was.
    monkeypatch.setattr(disk, "used", slow)
    monkeypatch.setattr(disk_usage, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(disk_usage, "ANSWER_SECONDS", 0.1)
    assert (await queries.disk_usage())[uid] == used
    gate.set()


# A node on a small file system


def mount_small(folder: Path) -> bool:
    """A file system of 16 MiB at ``folder``. False if this user may not mount one."""
    command = ["mount", "-t", "tmpfs", "-o", "size=16m,nr_inodes=4000,mode=0755", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 0


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=60)


@pytest_asyncio.fixture
async def small(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A node whose disk has 16 MiB, and whose kubelet looks often."""
    for module, name, value in (
        (evictor, "LOOK_SECONDS", 0.2),
        (evictor, "LIMITS_SECONDS", 0.2),
        (evictor, "END_SECONDS", 1.0),
    ):
        monkeypatch.setattr(module, name, value)
    if not mount_small(world.root):
        pytest.skip("only root can mount a small file system")
    try:
        world.disk = DiskWatch(world.root, [], pressure.thresholds({}), 0.5)
        yield world
        for manager in world.managers:
            await manager.stop(end_pods=True)
        world.managers.clear()
    finally:
        unmount(world.root)


SHARED: Json = {"volumes": [{"name": "e", "emptyDir": {}}]}
MOUNT: Json = {"volumeMounts": [{"name": "e", "mountPath": "/e"}]}
FILL = 'dd if=/dev/zero of="$HOME/{where}" bs=1M count={count} 2>/dev/null; echo wrote; sleep 600'


async def evicted(world: World, name: str) -> Json:
    status = await world.phase(name, "Failed")
    assert status["reason"] == "Evicted"
    conditions = {item["type"]: item for item in status["conditions"]}
    assert conditions["DisruptionTarget"]["status"] == "True"
    assert conditions["DisruptionTarget"]["reason"] == "TerminationByKubelet"
    assert conditions["DisruptionTarget"]["message"] == status["message"]

    def events() -> list[tuple[str, str]]:
        found = [one for one in world.api.events if one["reason"] == "Evicted" and one["involvedObject"]["name"] == name]
        return [(one["type"], one["message"]) for one in found]

    # Events are sent by a queue of their own.
    await world.until(events)
    assert events() == [("Warning", status["message"])]
    return status


@pytest.mark.linux
async def test_an_empty_dir_has_its_limit(small: World) -> None:
    await small.boot()
    limited = {"volumes": [{"name": "e", "emptyDir": {"sizeLimit": "2Mi"}}]}
    small.api.add_pod(
        "fine", {"restartPolicy": "Always", **limited, "containers": [sh(FILL.format(where="e/f", count=1), **MOUNT)]}
    )
    await small.phase("fine", "Running")
    small.api.add_pod(
        "fat", {"restartPolicy": "Always", **limited, "containers": [sh(FILL.format(where="e/f", count=3), **MOUNT)]}
    )
    status = await evicted(small, "fat")
    assert status["message"] == 'Usage of EmptyDir volume "e" exceeds the limit "2Mi". '
    assert small.api.pod("fine")["status"]["phase"] == "Running"
    await small.until(lambda: not (small.folder("fat").path / "empty").exists())
    assert small.managers[-1].evictor.pressure is False


@pytest.mark.linux
async def test_a_container_has_its_limit(small: World) -> None:
    await small.boot()
    limits = {"resources": {"limits": {"ephemeral-storage": "1Mi"}}}
    small.api.add_pod("fat", {"containers": [sh(FILL.format(where="tmp/f", count=3), **limits)]})
    status = await evicted(small, "fat")
    assert status["message"] == "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. "


@pytest.mark.linux
async def test_a_full_disk_costs_the_pod_that_filled_it(small: World) -> None:
    manager = await small.boot()
    quiet = sh("trap 'exit 0' TERM; while :; do sleep 0.1; done")
    small.api.add_pod("quiet", {"containers": [quiet]})
    small.api.add_pod("critical", {"priority": 2_000_001_000, "containers": [sh(FILL.format(where="c", count=4))]})
    await small.phase("quiet", "Running")
    await small.phase("critical", "Running")
    # To the last byte: dd ends with "No space left on device".
    small.api.add_pod("fat", {**SHARED, "containers": [sh(FILL.format(where="e/f", count=99), **MOUNT)]})
    status = await evicted(small, "fat")
    assert status["message"].startswith(
        "The node was low on resource: ephemeral-storage. Threshold quantity: 1677721, available: "
    )
    assert ("EvictionThresholdMet", "Attempting to reclaim ephemeral-storage") in small.node_events
    assert {name: small.api.pod(name)["status"]["phase"] for name in ("quiet", "critical")} == {
        "quiet": "Running",
        "critical": "Running",
    }
    # The space is back, and after a while the node takes pods again.
    await small.until(lambda: manager.evictor.pressure is False)
    small.api.add_pod("next", {"containers": [sh("true")]})
    await small.phase("next", "Succeeded")


@pytest.mark.linux
@pytest.mark.parametrize("context", [{}, {"runAsUser": 2001}])
async def test_a_disk_that_is_filled_outside_of_the_pod_costs_no_other_pod(
    small: World, monkeypatch: pytest.MonkeyPatch, context: Json
) -> None:
    shared = small.root / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(leftovers, "SHARED_FOLDERS", (str(shared),))
    await small.boot()
    small.api.add_pod("honest", {"containers": [sh(FILL.format(where="tmp/f", count=1))]})
    await small.phase("honest", "Running")
    await small.until(lambda: (small.folder("honest").sandbox("main", 0) / "tmp/f").stat().st_size == MIB)
    fill = f"dd if=/dev/zero of={shared}/f bs=1M count=99 2>/dev/null; sleep 600"
    small.api.add_pod("sly", {"containers": [sh(fill, securityContext=context)]})
    await evicted(small, "sly")
    await small.until(lambda: not list(shared.iterdir()))
    assert small.api.pod("honest")["status"]["phase"] == "Running"


@pytest.mark.linux
async def test_a_node_under_pressure_takes_critical_pods_only(small: World) -> None:
    manager = await small.boot()
    (small.root / "others").write_bytes(b"x" * 15 * MIB)
    await small.until(lambda: manager.evictor.pressure)
    small.api.add_pod("late", {"containers": [sh("true")]})
    status = await small.phase("late", "Failed")
    assert (status["reason"], status["message"]) == ("Evicted", "Pod was rejected: The node had condition: [DiskPressure]. ")
    small.api.add_pod("critical", {"priority": 2_000_001_000, "containers": [sh("true")]})
    await small.phase("critical", "Succeeded")
    (small.root / "others").unlink()
    await small.until(lambda: manager.evictor.pressure is False)


@pytest.mark.linux
async def test_too_many_files_are_a_full_disk_too(small: World) -> None:
    await small.boot()
    # In one process, to the last inode: thousands of processes take longer than the test waits on a busy machine.
    script = 'cd "$HOME/e"; i=0; { while true >f$i; do i=$((i+1)); done; } 2>/dev/null; sleep 600'
    small.api.add_pod("fat", {**SHARED, "terminationGracePeriodSeconds": 1, "containers": [sh(script, **MOUNT)]})
    status = await evicted(small, "fat")
    assert "low on resource: inodes" in status["message"]


@pytest.mark.linux
async def test_a_pod_that_ignores_sigterm_on_a_full_disk_gives_its_space_back(small: World) -> None:
    manager = await small.boot()
    script = f"trap '' TERM; {FILL.format(where='e/f', count=99)}"
    spec = {**SHARED, "terminationGracePeriodSeconds": 1, "containers": [sh(script, **MOUNT)]}
    small.api.add_pod("fat", spec)
    await evicted(small, "fat")
    await small.until(lambda: manager.evictor.pressure is False)
    with pytest.raises(OSError, match="No space left on device"):
        # The file system is small indeed.
        (small.root / "probe").write_bytes(b"x" * 17 * MIB)
    (small.root / "probe").unlink()


@pytest.mark.linux
async def test_an_eviction_goes_on_after_a_restart_of_the_kubelet(small: World) -> None:
    first = await small.boot()
    limited = {"volumes": [{"name": "e", "emptyDir": {"sizeLimit": "2Mi"}}]}
    script = f"trap '' TERM; {FILL.format(where='e/f', count=3)}"
    spec = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 4, **limited, "containers": [sh(script, **MOUNT)]}
    small.api.add_pod("fat", spec)
    await small.until(lambda: small.api.pod("fat")["status"].get("reason") == "Evicted")
    assert small.api.pod("fat")["status"]["phase"] == "Running"
    await first.stop(end_pods=False)
    await small.boot()
    status = await small.phase("fat", "Failed")
    assert status["reason"] == "Evicted"
    assert "exceeds the limit" in status["message"]
    assert "terminated" in state(status)

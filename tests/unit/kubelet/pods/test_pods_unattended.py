"""Containers that end while no kubelet runs: it was killed, or is being upgraded. The next one reports how they ended."""

import contextlib
import os
import signal
from typing import Any

import pytest
from thunderfleet_kubelet.containers.folder import read_json

from tests.support.pods import IMAGE, World

Json = dict[str, Any]

LINES = 40
GO = '"$CONTAINER_SANDBOX_MOUNT_POINT/go"'
RUN_ON = "while :; do sleep 0.05; done"


def ends(name: str, by: str, **more: Any) -> Json:
    """A container that runs until it may end, and says much as it ends; each further attempt runs on."""
    first = '[ "${CONTAINER_SANDBOX_MOUNT_POINT##*/}" = 0 ]'
    last = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); done; echo last words >&2; {by}"
    script = f"if {first}; then echo up; while [ ! -e {GO} ]; do sleep 0.05; done; {last}; fi; {RUN_ON}"
    return {
        "name": name,
        "image": IMAGE,
        "command": ["sh", "-c", script],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **more,
    }


def runs(name: str) -> Json:
    return {"name": name, "image": IMAGE, "command": ["sh", "-c", RUN_ON]}


async def until_up(world: World, pod: str, container: str) -> None:
    log = world.folder(pod).log(container, 0)
    await world.until(lambda: log.exists() and b" up\n" in log.read_bytes())


async def end_unattended(world: World, pod: str, container: str, outside: int | None = None) -> None:
    """Stops the kubelet, ends the container, and starts the next kubelet when the end was recorded."""
    await until_up(world, pod, container)
    await world.until(lambda: "running" in shown(world, pod, container)["state"])
    await world.managers[-1].stop(end_pods=False)
    here = world.folder(pod).attempt(container, 0)
    if outside is None:
        (world.folder(pod).sandbox(container, 0) / "go").touch()
    else:
        running = read_json(here / "running.json")
        assert running is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(running["pid"]), outside)
    await world.until((here / "exit.json").exists)
    before = world.api.status_writes
    await world.boot()
    await world.until(lambda: world.api.status_writes > before)


def shown(world: World, pod: str, container: str) -> Json:
    """The status of one container. Raises KeyError without one."""
    status = world.api.pod(pod)["status"]
    kinds = ("containerStatuses", "initContainerStatuses")
    return dict({one["name"]: one for kind in kinds for one in status.get(kind) or []}[container])


# Kubernetes makes one dollar sign of two.
WAYS = [
    ("exit 0", None, 0, None),
    ("exit 7", None, 7, None),
    ("kill -KILL $$$$", None, 137, 9),
    ("kill -TERM $$$$", None, 143, 15),
    ("kill -SEGV $$$$", None, 139, 11),
    # As the system kills a process when memory is short.
    (RUN_ON, signal.SIGKILL, 137, 9),
]


@pytest.mark.parametrize(("by", "outside", "code", "number"), WAYS)
async def test_the_end_of_a_container_is_reported_with_its_last_lines(
    world: World, by: str, outside: int | None, code: int, number: int | None
) -> None:
    await world.boot()
    world.api.add_pod("one", {"containers": [ends("main", by)]})
    await end_unattended(world, "one", "main", outside)
    await world.phase("one", "Failed" if code else "Succeeded")
    ended = shown(world, "one", "main")["state"]["terminated"]
    assert (ended["exitCode"], ended.get("signal")) == (code, number)
    assert ended["reason"] == ("Error" if code else "Completed")
    lines = [f"line {one}" for one in range(LINES)] + ["last words"] if outside is None else []
    assert ended.get("message", "") == ("\n".join(["up", *lines]) if code else "")
    assert (await world.log("one")).splitlines() == ["up", *lines]
    assert ended["startedAt"] <= ended["finishedAt"]
    assert shown(world, "one", "main")["restartCount"] == 0


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("Always", 7, True), ("OnFailure", 7, True), ("OnFailure", 0, False), ("Never", 7, False)],
)
async def test_the_restart_policy_holds_for_an_end_that_no_kubelet_saw(
    world: World, policy: str, code: int, again: bool
) -> None:
    await world.boot()
    world.api.add_pod("one", {"containers": [ends("main", f"exit {code}"), runs("other")], "restartPolicy": policy})
    await end_unattended(world, "one", "main")
    if again:
        await world.until(lambda: "running" in shown(world, "one", "main")["state"])
    now = shown(world, "one", "main")
    assert now["lastState" if again else "state"]["terminated"]["exitCode"] == code
    assert now["restartCount"] == (1 if again else 0)
    assert (await world.log("one", "main", previous=again)).endswith("last words\n")
    assert shown(world, "one", "other")["restartCount"] == 0 and "running" in shown(world, "one", "other")["state"]


@pytest.mark.parametrize(
    ("policy", "code", "outcome"),
    [
        ("Never", 3, "fails"),
        ("OnFailure", 3, "again"),
        ("Always", 3, "again"),
        ("Never", 0, "runs on"),
        ("Always", 0, "runs on"),
    ],
)
async def test_an_init_container_that_ends_without_a_kubelet(world: World, policy: str, code: int, outcome: str) -> None:
    await world.boot()
    spec = {"initContainers": [ends("init", f"exit {code}")], "containers": [runs("main")], "restartPolicy": policy}
    world.api.add_pod("one", spec)
    await end_unattended(world, "one", "init")
    if outcome == "again":
        await world.until(lambda: "running" in shown(world, "one", "init")["state"])
    else:
        await world.phase("one", "Failed" if outcome == "fails" else "Running")
    now = shown(world, "one", "init")
    ended = now["lastState" if outcome == "again" else "state"]["terminated"]
    assert ended["exitCode"] == code and now["restartCount"] == (outcome == "again")
    assert ended.get("message", "").endswith("last words") is bool(code)
    assert (await world.log("one", "init", previous=outcome == "again")).endswith("last words\n")


async def test_a_sidecar_that_ends_without_a_kubelet_runs_again(world: World) -> None:
    await world.boot()
    side = ends("side", "exit 5", restartPolicy="Always")
    world.api.add_pod("one", {"initContainers": [side], "containers": [runs("main")]})
    await world.phase("one", "Running")
    await end_unattended(world, "one", "side")
    await world.until(lambda: "running" in shown(world, "one", "side")["state"])
    now = shown(world, "one", "side")
    assert (now["lastState"]["terminated"]["exitCode"], now["restartCount"]) == (5, 1)
    assert shown(world, "one", "main")["restartCount"] == 0


async def test_several_ends_between_two_kubelets_are_all_in_the_status(world: World) -> None:
    """Also when the API server is away from the next kubelet for a while."""
    await world.boot()
    world.api.add_pod("one", {"containers": [ends(f"c{number}", f"exit {number}") for number in range(3)]})
    for number in range(3):
        await until_up(world, "one", f"c{number}")
    await world.managers[-1].stop(end_pods=False)
    for number in range(3):
        (world.folder("one").sandbox(f"c{number}", 0) / "go").touch()
        await world.until((world.folder("one").attempt(f"c{number}", 0) / "exit.json").exists)
    world.api.away = True
    manager = await world.boot()
    await world.until(lambda: all(worker._publisher.pending for worker in manager._workers.values()))
    world.api.away = False
    await world.phase("one", "Failed")
    assert [shown(world, "one", f"c{number}")["state"]["terminated"]["exitCode"] for number in range(3)] == [0, 1, 2]

"""Kubelets that are killed, upgraded, frozen or cut off, and an API server that is away. They come last: they disturb pods."""

import contextlib
import os
import re
import signal

import pytest

from tests.support.kubelets import LINUX, MAC, SCHEDULED_SECONDS, Fleet, alive_with, container, first, own_number, pod
from tests.support.waiting import until


def test_new_content_of_a_config_map_arrives_whole(fleet: Fleet) -> None:
    until(lambda: "saw new" in fleet.log("reader"), "the new content", 150)
    assert fleet.log("reader").splitlines() == ["saw old", "saw new"]


def numbers_of(fleet: Fleet, name: str) -> list[int]:
    return [int(number) for number in re.findall(r"^tick (\d+)$", fleet.log(name), re.MULTILINE)]


@pytest.mark.parametrize("how", ["killed", "upgraded"])
def test_containers_outlive_their_kubelet(fleet: Fleet, how: str) -> None:
    machine = fleet.cluster.machines[MAC]
    before = fleet.running("stays")
    printed = until(lambda: re.findall(r"^I am (\d+)$", fleet.log("stays"), re.MULTILINE), "it says who it is")
    main = next(pid for pid in alive_with(before["metadata"]["uid"]) if own_number(pid) == int(printed[0]))
    last = until(lambda: numbers_of(fleet, "stays"), "it ticks")[-1]
    if how == "killed":
        machine.kill_kubelet()
    else:
        machine.stop_kubelet()
    log = next(machine.folder.glob(f"kubelet/pods/{before['metadata']['uid']}/logs/main/0.log"))
    size = log.stat().st_size
    until(lambda: log.stat().st_size > size, "the container writes on by itself")
    machine.start_kubelet()
    until(lambda: fleet.kubectl("logs", "stays", "--tail=1", check=False).returncode == 0, "its log is served again")
    until(lambda: numbers_of(fleet, "stays")[-1] > last, "the log goes on")
    numbers = numbers_of(fleet, "stays")
    assert numbers == list(range(numbers[-1] + 1))
    after = fleet.pod("stays")
    assert first(after)["restartCount"] == 0
    assert first(after)["containerID"] == first(before)["containerID"]
    assert first(after)["state"] == first(before)["state"]
    assert main in alive_with(after["metadata"]["uid"])
    assert fleet.exec("stays", "echo", "still here") == "still here\n"


def test_pods_are_looked_after_while_the_api_server_is_away(fleet: Fleet) -> None:
    before = fleet.running("talks")
    uid = before["metadata"]["uid"]
    fleet.cluster.component("kube-apiserver", "off")
    try:
        old = set(alive_with(uid))
        for pid in old:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: set(alive_with(uid)) - old, "the container is started again")
    finally:
        fleet.cluster.component("kube-apiserver", "on")
    until(lambda: fleet.kubectl("get", "pod", "talks", check=False).returncode == 0, "the API server is back")
    after = fleet.await_pod("talks", lambda item: first(item).get("restartCount") == 1, "the restart is reported")
    assert first(after)["lastState"]["terminated"]["exitCode"] == 137
    assert after["metadata"]["uid"] == uid
    assert fleet.exec("talks", "echo", "here") == "here\n"


def test_pod_deleted_while_its_kubelet_is_dead_ends_when_it_returns(fleet: Fleet) -> None:
    item = fleet.running("who")
    uid = item["metadata"]["uid"]
    machine = fleet.cluster.machines[MAC]
    machine.kill_kubelet()
    # As if the API server had lost the pod: only its processes remain.
    fleet.kubectl("delete", "pod", "who", "--force", "--grace-period=0", "--wait=true")
    assert alive_with(uid)
    machine.start_kubelet()
    until(lambda: not alive_with(uid), "its processes end")
    until(lambda: not (machine.folder / "kubelet/pods" / uid).exists(), "its folder goes")


def test_pods_of_a_deleted_node_end_and_it_registers_again(fleet: Fleet) -> None:
    old = fleet.get("node", LINUX)["metadata"]["uid"]
    uid = fleet.running("plain")["metadata"]["uid"]
    assert alive_with(uid)
    fleet.kubectl("delete", "node", LINUX)
    until(lambda: not alive_with(uid), "its pods end")
    until(lambda: fleet.node_ready(LINUX), "the Node is registered again")
    assert fleet.get("node", LINUX)["metadata"]["uid"] != old
    until(lambda: fleet.kubectl("get", "pod", "plain", check=False).returncode != 0, "its pod is gone")
    fleet.apply(pod("plain", [container(fleet.cluster.image, "echo again; sleep 3600")], node=LINUX))
    fleet.running("plain", SCHEDULED_SECONDS)
    until(lambda: fleet.log("plain") == "again\n", "its log")

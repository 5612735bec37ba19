"""Kubelets that are killed, upgraded, frozen or cut off, and an API server that is away. They come last: they disturb pods."""

import contextlib
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.kubelets import LINUX, MAC, SCHEDULED_SECONDS, Fleet, Json, alive_with, container, first, own_number, pod
from tests.support.waiting import until


def test_new_content_of_a_config_map_arrives_whole(fleet: Fleet) -> None:
    until(lambda: "saw new" in fleet.log("reader"), "the new content", 150)
    assert fleet.log("reader").splitlines() == ["saw old", "saw new"]


def numbers_of(fleet: Fleet, name: str) -> list[int]:
    return [int(number) for number in re.findall(r"^tick (\d+)$", fleet.log(name), re.MULTILINE)]


UNTIL_GO = 'i=0; while [ ! -e "$HOME/go" ]; do echo tick $i; i=$((i+1)); sleep 0.1; done; exit 7'
GRACE_SECONDS = 180.0
"""More than the controller manager waits for a silent kubelet."""


def condition(item: Json, kind: str) -> str:
    """The status of a condition; empty when there is none."""
    return next((one["status"] for one in item["status"].get("conditions") or [] if one["type"] == kind), "")


@contextlib.contextmanager
def that_ends(fleet: Fleet, name: str) -> Iterator[Callable[[], Path]]:
    """A pod on the Mac, whose container ends with exit code 7, once the function that this yields was called and as it returns.

    It returns the pod's folder.
    """
    fleet.apply(pod(name, [container(fleet.cluster.image, UNTIL_GO)]))
    uid = fleet.running(name)["metadata"]["uid"]
    folder: Path = fleet.cluster.machines[MAC].folder / "kubelet/pods" / uid
    until(lambda: numbers_of(fleet, name), "it ticks")

    def end() -> Path:
        (folder / "containers/main/sandbox/0/go").touch()
        until(lambda: next(folder.glob("containers/main/**/exit.json"), None), "its shim has recorded its end")
        return folder

    yield end
    fleet.kubectl("delete", "pod", name, "--wait=false")


def unreachable(fleet: Fleet) -> set[str]:
    """The effects of the taints that the controller manager gives to a Node that is silent."""
    return {one["effect"] for one in fleet.get("node", MAC)["spec"]["taints"] if one["key"] == "node.kubernetes.io/unreachable"}


def has_lost_nothing(fleet: Fleet, name: str, folder: Path) -> None:
    """The exit code and each line of the pod's first container, once its kubelet is back."""
    item = fleet.await_pod(name, lambda one: first(one).get("restartCount") == 1, "the restart is reported")
    assert first(item)["lastState"]["terminated"]["exitCode"] == 7
    written = (folder / "logs/main/0.log").read_text().count(" tick ")
    shown = until(lambda: fleet.kubectl("logs", name, "--previous", check=False).stdout, "its log is served")
    assert shown.splitlines() == [f"tick {number}" for number in range(written)]


def has_gone_on(fleet: Fleet, before: Json, main: int, last: int) -> None:
    """The pod ``stays``, its process and its log, which showed the tick ``last`` before the outage."""
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


def has_failed_in_init(fleet: Fleet, name: str, folder: Path) -> None:
    """The signal, each line and the last words of the pod's init container."""
    status = fleet.await_pod(name, lambda one: one["status"]["phase"] == "Failed", "it has failed")["status"]
    ended = status["initContainerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["signal"]) == (137, 9)
    ticks = (folder / "logs/init/0.log").read_text().count(" tick ")
    lines = [*(f"tick {number}" for number in range(ticks)), "last words"]
    assert fleet.kubectl("logs", name, "-c", "init").stdout.splitlines() == lines
    assert ended["message"].splitlines() == lines[-len(ended["message"].splitlines()) :]


@pytest.mark.parametrize("how", ["killed", "upgraded"])
def test_containers_outlive_their_kubelet_and_the_next_reports_those_that_end(fleet: Fleet, how: str) -> None:
    machine, name = fleet.cluster.machines[MAC], f"init-{how}"
    before = fleet.running("stays")
    printed = until(lambda: re.findall(r"^I am (\d+)$", fleet.log("stays"), re.MULTILINE), "it says who it is")
    main = next(pid for pid in alive_with(before["metadata"]["uid"]) if own_number(pid) == int(printed[0]))
    log = next(machine.folder.glob(f"kubelet/pods/{before['metadata']['uid']}/logs/main/0.log"))
    # Kubernetes makes one dollar sign of two.
    dies = UNTIL_GO.replace("exit 7", "echo last words; kill -KILL $$$$")
    init = container(fleet.cluster.image, dies, name="init", terminationMessagePolicy="FallbackToLogsOnError")
    fleet.apply(pod(name, [container(fleet.cluster.image, "true")], initContainers=[init], restartPolicy="Never"))
    until(lambda: "tick" in fleet.kubectl("logs", name, "-c", "init", check=False).stdout, "its init container ticks")
    of_init = machine.folder / "kubelet/pods" / fleet.pod(name)["metadata"]["uid"]
    with that_ends(fleet, f"ends-{how}") as end:
        last = until(lambda: numbers_of(fleet, "stays"), "it ticks")[-1]
        if how == "killed":
            machine.kill_kubelet()
        else:
            machine.stop_kubelet()
        try:
            size = log.stat().st_size
            until(lambda: log.stat().st_size > size, "the container that stays writes on by itself")
            folder = end()
            (of_init / "containers/init/sandbox/0/go").touch()
            until((of_init / "containers/init/0/exit.json").exists, "its shim has recorded its end")
        finally:
            machine.start_kubelet()
        has_gone_on(fleet, before, main, last)
        has_lost_nothing(fleet, f"ends-{how}", folder)
    has_failed_in_init(fleet, name, of_init)
    fleet.kubectl("delete", "pod", name, "--wait=false")


def test_a_frozen_kubelet_loses_no_line_and_no_exit_code(fleet: Fleet) -> None:
    machine = fleet.cluster.machines[MAC]
    before = fleet.running("stays")
    with that_ends(fleet, "ends") as end:
        machine.freeze_kubelet()
        try:
            # What the controller manager does with the pods of a Node whose kubelet is silent for long.
            unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
            fleet.kubectl("patch", "pod", "stays", "--subresource=status", "-p", json.dumps(unready))
            folder = end()
        finally:
            machine.thaw_kubelet()
        has_lost_nothing(fleet, "ends", folder)
    after = fleet.await_pod("stays", lambda item: condition(item, "Ready") == "True", "it is Ready again")
    assert first(after) == first(before)


@pytest.mark.soak
@pytest.mark.parametrize("how", ["frozen", "cut off"])
def test_a_kubelet_that_is_silent_for_longer_than_the_grace_of_its_node(fleet: Fleet, how: str) -> None:
    cluster, machine, names = fleet.cluster, fleet.cluster.machines[MAC], ("stays", "whole", "serves", "reader")
    before = {name: first(fleet.running(name)) for name in names}
    last = until(lambda: numbers_of(fleet, "stays"), "it ticks")[-1]
    with that_ends(fleet, "silent") as end:
        if how == "frozen":
            machine.freeze_kubelet()
        else:
            cluster.lan("pull", MAC)
        try:
            folder = end()
            until(lambda: condition(fleet.get("node", MAC), "Ready") == "Unknown", "its Node is given up", GRACE_SECONDS)
            fleet.await_pod("stays", lambda item: condition(item, "Ready") == "False", "its pods are not Ready")
            until(lambda: unreachable(fleet) == {"NoSchedule", "NoExecute"}, "no pod comes to it")
            if how == "cut off":
                # It needs no API server to start it again.
                until((folder / "logs/main/1.log").exists, "the container that ended runs again")
        finally:
            if how == "frozen":
                machine.thaw_kubelet()
            else:
                cluster.lan("plug", MAC)
        until(lambda: fleet.node_ready(MAC), "its Node is Ready", GRACE_SECONDS)
        has_lost_nothing(fleet, "silent", folder)
    for name in names:
        after = fleet.await_pod(name, lambda item: condition(item, "Ready") == "True", "it is Ready again")
        assert first(after) == before[name]
    until(lambda: not unreachable(fleet), "no taint is left")
    numbers = until(lambda: numbers_of(fleet, "stays"), "its log is served")
    assert numbers == list(range(numbers[-1] + 1)) and numbers[-1] > last


def test_pods_are_looked_after_while_the_api_server_is_away(fleet: Fleet) -> None:
    before = fleet.running("talks")
    uid = before["metadata"]["uid"]
    fleet.cluster.component("kube-apiserver", "off")
    try:
        again = fleet.cluster.machines[MAC].folder / "kubelet/pods" / uid / "containers/main/1/running.json"
        assert not again.exists()
        for pid in alive_with(uid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Not just any new process: a loop in the shell starts one every moment.
        until(again.exists, "the container is started again")
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

"""Pods with real shims and real processes, and an API server in memory."""

import asyncio
import base64
import contextlib
import errno
import json
import os
import resource
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_kubelet.containers import launch, leftovers
from thunderfleet_kubelet.containers.folder import PodFolder
from thunderfleet_kubelet.containers.inputs import user, volumes
from thunderfleet_kubelet.containers.runtime import ContainerRuntime
from thunderfleet_kubelet.containers.streams import exec_session
from thunderfleet_kubelet.containers.streams.logs import LogOptions
from thunderfleet_kubelet.pods import worker
from thunderfleet_kubelet.pods.act import mounter, prober, publisher, stopper
from thunderfleet_kubelet.pods.decide import lifecycle, podspec
from thunderfleet_kubelet.pods.decide.lifecycle import Stop
from thunderfleet_kubelet.pods.manager import PodManager
from thunderfleet_kubelet.pods.queries import ContainerNotRunning, NoSuchContainer, NoSuchPod
from thunderfleet_kubelet.shim import files, owner, processes
from thunderfleet_lib.backoff import Backoff

from tests.support.pods import IMAGE, KUBELET, USERS, World, sh, state
from tests.support.processes import alive, exists

Json = dict[str, Any]


async def test_pod_runs_to_its_end(world: World) -> None:
    await world.boot()
    world.api.add_pod("one", {"containers": [sh("echo hello; echo oops >&2; exit 3")]})
    status = await world.phase("one", "Failed")
    ended = state(status)["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (3, "Error")
    assert status["podIP"] == "127.0.0.1"
    assert {c["type"]: c["status"] for c in status["conditions"]}["PodScheduled"] == "True"
    assert sorted((await world.log("one")).splitlines()) == ["hello", "oops"]
    assert {"Pulled", "Created", "Started"} <= set(world.api.reasons())


WAITS = "nice; exec sleep 600"
FIRST: Json = {"securityContext": {"capabilities": {"add": ["SYS_NICE"]}}}


@pytest.mark.parametrize("mac", [True, False])
async def test_only_processes_of_the_container_come_before_other_programs(mac: bool, world: World) -> None:
    manager = await world.boot()
    names = ("first", "main", "other")
    first, main, other = (sh(script) | {"name": name} for name, script in zip(names, ("nice", WAITS, WAITS), strict=True))
    asks = {"runtimeClassName": "macos"} if mac else {}
    world.api.add_pod("one", {"initContainers": [first | FIRST], "containers": [main | FIRST, other], **asks})
    await world.phase("one", "Running")
    logs = {name: world.folder("one").log(name, 0) for name in names}
    await world.until(lambda: all(log.exists() and log.read_bytes() for log in logs.values()))
    found = {name: int(await world.log("one", name)) for name in names}
    own = os.getpriority(os.PRIO_PROCESS, 0)
    # Only root may set it below its own.
    expected = -15 if mac and os.geteuid() == 0 else own
    assert found == {"first": expected, "main": expected, "other": own}
    session = await manager.queries.exec("default", "one", "main", ["nice"], stdin=False, tty=False)
    assert int(b"".join([part async for part in session.stdout])) == own
    assert await session.wait() == 0


async def test_pod_ends_politely_when_deleted(world: World) -> None:
    await world.boot()
    world.api.add_pod("two", {"containers": [sh("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")]})
    status = await world.phase("two", "Running")
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
    await world.until(lambda: next(world.root.glob("pods/*/logs/main/0.log")).read_bytes())
    log = asyncio.create_task(world.log("two", follow=True))
    await asyncio.sleep(0)
    world.api.delete_pod("two")
    await world.until(lambda: "default/two" not in world.api.pods())
    assert "bye" in await log
    await world.until(lambda: not list(world.root.glob("pods/*")))


async def test_a_grace_period_of_any_length_ends_when_the_container_does(world: World) -> None:
    waits = f"echo stopping; until [ -e {world.root}/go ]; do sleep 0.05; done; exit 7"
    await world.boot()
    world.api.add_pod("patient", {"containers": [sh(f"trap '{waits}' TERM; echo up; while :; do sleep 0.05; done")]})
    await world.phase("patient", "Running")
    await world.until(lambda: b"up" in next(world.root.glob("pods/*/logs/main/0.log")).read_bytes())
    world.api.delete_pod("patient", 2**63 - 1)
    await world.until(lambda: b"stopping" in next(world.root.glob("pods/*/logs/main/0.log")).read_bytes())
    (world.root / "go").touch()
    await world.until(lambda: list(world.root.glob("pods/*/containers/main/0/exit.json")))
    ended = json.loads(next(world.root.glob("pods/*/containers/main/0/exit.json")).read_text())
    assert (ended["exitCode"], ended["graceExceeded"]) == (7, False)
    await world.until(lambda: "default/patient" not in world.api.pods())


async def test_a_pod_that_was_deleted_by_force_ends_whatever_its_grace_period(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(podspec, "REMOVED_GRACE_SECONDS", 0.5)
    await world.boot()
    stubborn = sh("trap 'echo never' TERM; echo up; while :; do sleep 0.05; done")
    world.api.add_pod("stubborn", {"terminationGracePeriodSeconds": 2**63 - 1, "containers": [stubborn]})
    await world.phase("stubborn", "Running")
    world.api.delete_pod("stubborn", 2**63 - 1)
    await world.until(lambda: b"never" in b"".join(log.read_bytes() for log in world.root.glob("pods/*/logs/main/0.log")))
    uid = world.api.pod("stubborn")["metadata"]["uid"]
    await world.api.delete("/api/v1/namespaces/default/pods/stubborn", uid=uid)
    await world.until(lambda: not list(world.root.glob("pods/*")) and not world.processes())


async def test_new_kubelet_adopts_what_runs(world: World) -> None:
    first = await world.boot()
    world.api.add_pod("three", {"containers": [sh("i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done")]})
    before = await world.phase("three", "Running")
    writes = world.api.status_writes
    await first.stop(end_pods=False)
    assert world.processes()
    await world.boot()
    size = len(await world.log("three"))
    await world.until(lambda: next(world.root.glob("pods/*/logs/main/0.log")).stat().st_size > size + 200)
    assert world.api.pod("three")["status"] == before
    assert world.api.status_writes == writes
    # The new kubelet manages the container: it notices its end.
    pids = world.processes()
    for pid in pids:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            continue
    status = await world.phase("three", "Failed")
    assert state(status)["terminated"]["exitCode"] == 137
    assert status["containerStatuses"][0]["restartCount"] == 0


async def test_a_program_that_cannot_start_says_why(world: World) -> None:
    await world.boot()
    world.api.add_pod("typo", {"containers": [{"name": "main", "image": IMAGE, "command": ["no-such-program"]}]})
    status = await world.phase("typo", "Failed")
    ended = state(status)["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("StartError", 128)
    assert "'no-such-program' not found on PATH=" in ended["message"]


@pytest.mark.parametrize(
    ("container", "kind"),
    [
        ({"command": ["nothing"], "env": [{"name": "PATH", "value": "/x:" * 30_000}]}, "terminated"),
        ({"workingDir": "/" + "w" * 90_000}, "waiting"),
    ],
)
async def test_a_status_is_never_too_large_to_be_written(world: World, container: Json, kind: str) -> None:
    """A pod is deleted after its last status has been written."""
    await world.boot()
    world.api.add_pod("large", {"containers": [{**sh("true"), **container}]})
    await world.until(lambda: state(world.api.pod("large")["status"])[kind].get("message"))
    assert 1000 < len(state(world.api.pod("large")["status"])[kind]["message"]) < 5000


async def test_crash_loop_backs_off_and_says_so(world: World) -> None:
    await world.boot()
    world.api.add_pod("crash", {"restartPolicy": "Always", "containers": [sh("exit 7")]})
    await world.until(lambda: state(world.api.pod("crash")["status"])["waiting"]["reason"] == "CrashLoopBackOff")
    container = world.api.pod("crash")["status"]["containerStatuses"][0]
    assert container["restartCount"] == 1
    assert container["lastState"]["terminated"]["exitCode"] == 7
    assert "back-off 10s restarting failed container=main pod=crash_default(" in container["state"]["waiting"]["message"]
    await world.until(lambda: "BackOff" in world.api.reasons())
    assert await world.log("crash", previous=True) == ""


async def test_init_containers_run_one_after_the_other(world: World) -> None:
    await world.boot()
    mounts = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    into = 'cd "$CONTAINER_SANDBOX_MOUNT_POINT/shared"; '
    spec = {
        "volumes": [{"name": "shared", "emptyDir": {}}],
        "initContainers": [
            {**sh(into + "sleep 0.2; echo first >> order"), **mounts, "name": "first"},
            {**sh(into + "echo second >> order"), **mounts, "name": "second"},
        ],
        "containers": [{**sh(into + "echo main >> order; cat order"), **mounts}],
    }
    world.api.add_pod("ordered", spec)
    status = await world.phase("ordered", "Succeeded")
    assert (await world.log("ordered", "main")).split() == ["first", "second", "main"]
    assert [item["state"]["terminated"]["exitCode"] for item in status["initContainerStatuses"]] == [0, 0]
    assert [item["ready"] for item in status["initContainerStatuses"]] == [True, True]


async def test_failed_init_container_fails_the_pod(world: World) -> None:
    await world.boot()
    world.api.add_pod("noinit", {"initContainers": [{**sh("exit 1"), "name": "init"}], "containers": [sh("echo never")]})
    status = await world.phase("noinit", "Failed")
    assert state(status)["waiting"]["reason"] == "PodInitializing"
    with pytest.raises(ContainerNotRunning, match="waiting to start"):
        await world.log("noinit", "main")


async def test_whole_process_group_and_strays_end(world: World) -> None:
    await world.boot()
    script = (
        "trap '' TERM; (trap '' TERM; while :; do sleep 0.1; done) & "
        f"{sys.executable} -c 'import os,time; os.setsid(); print(\"away\", flush=True); time.sleep(600)' & "
        "while :; do sleep 0.1; done"
    )
    # The interpreter may be in a folder that only this user can read.
    world.api.add_pod("stubborn", {"containers": [sh(script, securityContext={"runAsUser": os.geteuid()})]})
    await world.phase("stubborn", "Running")
    await world.until(lambda: b"away" in next(world.root.glob("pods/*/logs/main/0.log")).read_bytes())
    assert len(world.processes()) >= 3
    world.api.delete_pod("stubborn", grace=1)
    await world.until(lambda: "default/stubborn" not in world.api.pods())
    assert world.processes() == []
    await world.until(lambda: "ExceededGracePeriod" in world.api.reasons())


async def test_children_end_with_the_main_process(world: World) -> None:
    await world.boot()
    world.api.add_pod("parent", {"containers": [sh("sleep 600 & exit 0")]})
    await world.phase("parent", "Succeeded")
    assert world.processes() == []


async def test_pod_taken_from_the_api_while_the_kubelet_was_away_ends(world: World) -> None:
    first = await world.boot()
    world.api.add_pod("orphan", {"containers": [sh("sleep 600")]})
    await world.phase("orphan", "Running")
    await first.stop(end_pods=False)
    del world.api.objects["/api/v1/namespaces/default/pods/orphan"]
    await world.boot()
    await world.until(lambda: not world.processes() and not list(world.root.glob("pods/*")))


async def test_same_name_with_another_uid_is_another_pod(world: World) -> None:
    await world.boot()
    world.api.add_pod("same", {"containers": [sh("echo old; sleep 600")]})
    await world.phase("same", "Running")
    world.api.add_pod("same", {"containers": [sh("echo new; sleep 600")]})
    await world.phase("same", "Running")
    await world.until(lambda: len(list(world.root.glob("pods/*"))) == 1)
    await world.until(lambda: b"new" in next(world.root.glob("pods/*/logs/main/0.log")).read_bytes())
    assert await world.log("same") == "new\n"


async def test_killed_shim_is_noticed_and_its_container_ended(world: World) -> None:
    await world.boot()
    world.api.add_pod("shimless", {"containers": [sh("sleep 600")]})
    await world.phase("shimless", "Running")
    running = json.loads(next(world.root.glob("pods/*/containers/main/0/running.json")).read_text())
    os.kill(running["shim"], 9)
    status = await world.phase("shimless", "Failed")
    ended = state(status)["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("ContainerStatusUnknown", 137)
    assert world.processes() == []


async def test_liveness_restarts_and_readiness_follows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober, "STARTING_SECONDS", 0.2)
    await world.boot()
    here = '"$CONTAINER_SANDBOX_MOUNT_POINT"'
    probe = {"periodSeconds": 0.05, "timeoutSeconds": 60, "failureThreshold": 1}
    lives = {"exec": {"command": ["test", "-f", "alive"]}}
    container = sh(
        f"cd {here}; touch alive; while :; do sleep 0.05; done",
        # On a busy machine a liveness probe may come before the container has made its file.
        startupProbe={**lives, **probe, "failureThreshold": 10_000},
        livenessProbe={**lives, **probe},
        readinessProbe={"exec": {"command": ["sh", "-c", f"test -f {here}/ready"]}, **probe},
    )
    world.api.add_pod("probed", {"restartPolicy": "Always", "containers": [container]})
    await world.phase("probed", "Running")

    def unhealthy() -> set[str]:
        return {
            event["type"] for event in world.api.events if event["reason"] == "Unhealthy" and "Readiness" in event["message"]
        }

    await world.until(unhealthy)
    assert unhealthy() == {"Normal"}, "it has not been ready yet"
    assert not world.api.pod("probed")["status"]["containerStatuses"][0]["ready"]
    sandbox = next(world.root.glob("pods/*/containers/main/sandbox/0"))
    (sandbox / "ready").touch()
    await world.until(lambda: world.api.pod("probed")["status"]["containerStatuses"][0]["ready"])
    conditions = {item["type"]: item for item in world.api.pod("probed")["status"]["conditions"]}
    assert (conditions["Ready"]["status"], conditions["Ready"].get("message")) == ("True", None)
    (sandbox / "ready").unlink()
    await world.until(lambda: "Warning" in unhealthy())
    await world.until(lambda: (sandbox / "alive").exists())
    (sandbox / "alive").unlink()
    await world.until(lambda: world.api.pod("probed")["status"]["containerStatuses"][0]["restartCount"] >= 1)
    await world.until(lambda: "Killing" in world.api.reasons())


def asking(world: World) -> None:
    """A pod whose probes succeed once there is a file."""
    here = '"$CONTAINER_SANDBOX_MOUNT_POINT"'
    script = "cd {0}; echo {1} >> asked; test -f {1}"

    def probe(kind: str) -> Json:
        command = ["sh", "-c", script.format(here, kind)]
        return {"exec": {"command": command}, "periodSeconds": 0.05, "timeoutSeconds": 60, "failureThreshold": 10_000}

    container = sh("exec sleep 600", startupProbe=probe("startup"), readinessProbe=probe("readiness"))
    world.api.add_pod("asked", {"containers": [container]})


async def test_a_good_start_has_no_event_about_probes_and_one_status(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "STARTED_SECONDS", 600.0)
    monkeypatch.setattr(prober, "STARTING_SECONDS", 600.0)
    await world.boot()
    asking(world)
    await world.phase("asked", "Running")
    sandbox = next(world.root.glob("pods/*/containers/main/sandbox/0"))
    asked = sandbox / "asked"
    writes = world.api.status_writes
    # The first probe makes the file.
    await world.until(asked.exists)
    for name in ("startup", "readiness"):
        await world.until(lambda name=name: asked.read_text().count(name) > 1)  # type: ignore[misc]
        (sandbox / name).touch()
    await world.until(lambda: world.api.pod("asked")["status"]["containerStatuses"][0]["ready"])
    assert world.api.pod("asked")["status"]["containerStatuses"][0]["started"]
    assert world.api.status_writes == writes + 1
    assert "Unhealthy" not in world.api.reasons()


async def test_a_slow_start_is_told_step_by_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "STARTED_SECONDS", 0.2)
    monkeypatch.setattr(prober, "STARTING_SECONDS", 0.2)
    await world.boot()
    asking(world)
    await world.phase("asked", "Running")
    await world.until(lambda: "Unhealthy" in world.api.reasons())
    (next(world.root.glob("pods/*/containers/main/sandbox/0")) / "startup").touch()
    await world.until(lambda: world.api.pod("asked")["status"]["containerStatuses"][0]["started"])
    assert not world.api.pod("asked")["status"]["containerStatuses"][0]["ready"]


async def test_pre_stop_runs_before_the_signal(world: World) -> None:
    await world.boot()
    hook = {"preStop": {"exec": {"command": ["sh", "-c", 'echo hooked > "$HOME/hooked"']}}}
    script = "trap 'cat \"$HOME/hooked\"; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    world.api.add_pod("hooked", {"containers": [sh(script, lifecycle=hook)]})
    await world.phase("hooked", "Running")
    await world.until(lambda: b"up" in next(world.root.glob("pods/*/logs/main/0.log")).read_bytes())
    log = asyncio.create_task(world.log("hooked", follow=True))
    await asyncio.sleep(0)
    world.api.delete_pod("hooked", grace=10)
    assert "hooked" in await log


def open_terminals() -> int:
    """How many terminals this process has open."""

    def is_terminal(fd: str) -> bool:
        with contextlib.suppress(OSError):
            return os.isatty(int(fd))
        return False

    return sum(map(is_terminal, os.listdir("/dev/fd")))


async def test_exec_in_the_container(world: World) -> None:
    manager = await world.boot()
    queries = manager.queries
    world.api.add_pod("shell", {"containers": [sh("sleep 600", env=[{"name": "COLOUR", "value": "blue"}])]})
    await world.phase("shell", "Running")

    async def text(stream: AsyncIterator[bytes]) -> str:
        return b"".join([part async for part in stream]).decode()

    session = await queries.exec(
        "default", "shell", None, ["sh", "-c", "cat; echo $COLOUR; id -u; echo no >&2; exit 4"], stdin=True, tty=False
    )
    await session.stdin.write(b"typed\n")
    await session.stdin.close()
    out, errors = await asyncio.gather(text(session.stdout), text(session.stderr))
    assert out.split() == ["typed", "blue", str(world.user("shell"))]
    assert errors == "no\n"
    assert await session.wait() == 4

    session = await queries.exec("default", "shell", "main", ["sh", "-c", "stty size; tty; exit 5"], stdin=True, tty=True)
    session.resize(101, 43)
    reader = asyncio.create_task(text(session.stdout))
    assert await session.wait() == 5
    assert "/dev/" in await reader
    await session.kill()

    with pytest.raises(FileNotFoundError, match="'nothing-of-that-name' not found on PATH"):
        await queries.exec("default", "shell", "main", ["nothing-of-that-name"], stdin=False, tty=False)
    # Neither a program nor a script.
    (world.folder("shell").sandbox("main", 0) / "text").write_text("words\n")
    (world.folder("shell").sandbox("main", 0) / "text").chmod(0o755)
    terminals = open_terminals()
    for command, words in ((["./text"], "Exec format error"), (["sh", "a\0b"], "null byte"), (["sh", "x" * 2**23], "too long")):
        with pytest.raises(OSError, match=f"cannot start: .*{words}"):
            await queries.exec("default", "shell", "main", command, stdin=False, tty=True)
    assert open_terminals() == terminals, "a machine has few terminals"
    with pytest.raises(NoSuchPod):
        await queries.exec("default", "other", "main", ["true"], stdin=False, tty=False)
    with pytest.raises(NoSuchContainer):
        await queries.exec("default", "shell", "other", ["true"], stdin=False, tty=False)
    used = await manager.queries.usage()
    assert [(item.pod, item.container) for item in used] == [("shell", "main")]
    assert used[0].memory_bytes > 0 and used[0].resident_bytes > 0


async def test_secrets_tokens_and_config_maps_are_mounted(world: World) -> None:
    await world.boot()
    world.api.add("configmaps", "settings", {"a.txt": "one"})
    world.api.add("configmaps", "kube-root-ca.crt", {"ca.crt": "CA"})
    world.api.add("secrets", "keys", {"tls.key": "c2VjcmV0"})
    folder = "var/run/secrets/kubernetes.io/serviceaccount"
    projected = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    spec = {
        "volumes": [
            {"name": "settings", "configMap": {"name": "settings"}},
            {"name": "keys", "secret": {"secretName": "keys"}},
            {"name": "none", "secret": {"secretName": "none", "optional": True}},
            {"name": "api", "projected": {"sources": projected}},
            {"name": "host", "hostPath": {"path": str(world.root), "type": "Directory"}},
        ],
        "containers": [
            sh(
                f'cd "$HOME"; cat etc/a.txt keys/tls.key one.txt; cd {folder}; cat token ca.crt namespace; echo;sleep 600',
                volumeMounts=[
                    {"name": "settings", "mountPath": "/etc"},
                    {"name": "settings", "mountPath": "/one.txt", "subPath": "a.txt"},
                    {"name": "keys", "mountPath": "/keys"},
                    {"name": "none", "mountPath": "/none"},
                    {"name": "host", "mountPath": "/host"},
                    {"name": "api", "mountPath": "/" + folder},
                ],
            )
        ],
    }
    world.api.add_pod("mounted", spec)
    await world.phase("mounted", "Running")
    await world.until(lambda: b"default" in next(world.root.glob("pods/*/logs/main/0.log")).read_bytes())
    assert await world.log("mounted") == "onesecretonetoken-1CAdefault\n"
    key = next(world.root.glob("pods/*/volumes/keys/*/..data/tls.key"))
    assert key.stat().st_mode & 0o077 == 0
    assert key.stat().st_uid == world.user("mounted")


async def test_missing_config_map_is_said_and_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.boot()
    volume = {"name": "late", "configMap": {"name": "late"}}
    world.api.add_pod(
        "waits",
        {"volumes": [volume], "containers": [sh("true", volumeMounts=[{"name": "late", "mountPath": "/late"}])]},
    )
    await world.until(lambda: any("ConfigMap 'late' not found" in event["message"] for event in world.api.events))
    assert state(world.api.pod("waits")["status"])["waiting"]["reason"] == "ContainerCreating"
    world.api.add("configmaps", "late", {"x": "y"})
    await world.phase("waits", "Succeeded")


async def test_a_new_pod_gets_the_object_that_is_not_an_earlier_one_of_its_name(world: World) -> None:
    await world.boot()
    volume = {"name": "keys", "secret": {"secretName": "keys"}}
    script = "cat $CONTAINER_SANDBOX_MOUNT_POINT/keys/k"
    spec = {"volumes": [volume], "containers": [sh(script, volumeMounts=[{"name": "keys", "mountPath": "/keys"}])]}
    for word in ("old", "new"):
        world.api.add("secrets", "keys", {"k": base64.b64encode(word.encode()).decode()})
        world.api.add_pod(word, spec)
        await world.phase(word, "Succeeded")
        assert (await world.log(word)).strip() == word


@pytest.mark.parametrize(
    ("spec", "reason", "sentence"),
    [
        ({"hostNetwork": False, "containers": [sh("true")]}, "HostNetworkRequired", "hostNetwork: true"),
        ({"containers": [{**sh("true"), "image": "elsewhere/x:1"}]}, "ImagePullBackOff", "'elsewhere/x:1' is not configured"),
        (
            {"containers": [{**sh("true"), "image": "elsewhere/x:1", "imagePullPolicy": "Never"}]},
            "ErrImageNeverPull",
            "is not configured",
        ),
        (
            {"containers": [sh("true", env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "no", "key": "k"}}}])]},
            "CreateContainerConfigError",
            "Secret 'no' not found in the pod's namespace",
        ),
        (
            {"containers": [sh("true", securityContext={"runAsNonRoot": True, "runAsUser": 0})]},
            "CreateContainerConfigError",
            "runAsNonRoot",
        ),
    ],
)
async def test_what_cannot_run_waits_with_a_sentence(world: World, spec: Json, reason: str, sentence: str) -> None:
    await world.boot()
    world.api.add_pod("no", spec)
    await world.until(lambda: state(world.api.pod("no")["status"])["waiting"]["reason"] == reason)
    status = world.api.pod("no")["status"]
    assert status["phase"] == "Pending"
    assert sentence in state(status)["waiting"]["message"]
    world.api.delete_pod("no")
    await world.until(lambda: "default/no" not in world.api.pods())


async def test_pod_that_does_not_fit_fails(world: World) -> None:
    await world.boot()
    huge = {"resources": {"requests": {"memory": "9Gi"}}}
    world.api.add_pod("huge", {"containers": [sh("true", **huge)]})
    status = await world.phase("huge", "Failed")
    assert status["reason"] == "OutOfmemory"
    world.api.delete_pod("huge")
    await world.until(lambda: "default/huge" not in world.api.pods())


async def test_status_is_not_lost_while_the_api_is_away(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "RETRY", Backoff(0.05, 15.0))
    await world.boot()
    world.api.add_pod("quiet", {"restartPolicy": "Always", "containers": [sh("sleep 0.5; exit 2")]})
    await world.phase("quiet", "Running")
    world.api.away = True
    # It restarts without the API server, and the restart is published later.
    await world.until(lambda: list(world.root.glob("pods/*/containers/main/1")))
    assert world.api.pod("quiet")["status"]["containerStatuses"][0]["restartCount"] == 0
    world.api.away = False
    await world.until(lambda: world.api.pod("quiet")["status"]["containerStatuses"][0]["restartCount"] == 1)


async def test_quiet_pod_writes_nothing(world: World) -> None:
    manager = await world.boot()
    world.api.add_pod("still", {"containers": [sh("sleep 600")]})
    await world.phase("still", "Running")
    writes = world.api.status_writes
    worker = next(iter(manager._workers.values()))
    for _ in range(5):
        await worker.step()
    manager.sync(world.api.pods())
    await worker.step()
    assert world.api.status_writes == writes
    assert writes == 1


async def test_token_is_replaced_before_it_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounter, "REFRESH_SECONDS", 0.1)
    # 80 % of a life of two seconds; the API server's time has whole seconds.
    world.api.token_seconds = 2.0
    await world.boot()
    volume = {"name": "api", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    mount = [{"name": "api", "mountPath": "/api"}]
    world.api.add_pod("rotated", {"volumes": [volume], "containers": [sh("sleep 600", volumeMounts=mount)]})
    await world.phase("rotated", "Running")
    token = next(world.root.glob("pods/*/containers/main/sandbox/0/api")) / "token"
    await world.until(lambda: token.read_text() not in ("", "token-1"))
    # While the API server is unreachable, the last token stays.
    world.api.away = True
    held = token.read_text()
    worker = next(iter(world.managers[-1]._workers.values()))
    await worker.step()
    assert token.read_text() == held
    world.api.away = False


async def test_a_graceful_stop_continues_when_the_kubelet_is_killed(world: World) -> None:
    first = await world.boot()
    script = "trap 'touch \"$HOME/asked\"' TERM; echo up; while :; do sleep 0.05; done"
    world.api.add_pod("slow", {"containers": [sh(script)]})
    await world.phase("slow", "Running")
    await world.until(lambda: b"up" in next(world.root.glob("pods/*/logs/main/0.log")).read_bytes())
    world.api.delete_pod("slow", grace=2)
    await world.until(lambda: list(world.root.glob("pods/*/containers/main/sandbox/0/asked")))
    await first.stop(end_pods=False)
    # No kubelet runs, and the container still ends.
    await world.until(lambda: not world.processes())
    await world.until(lambda: list(world.root.glob("pods/*/containers/main/0/exit.json")))
    await world.boot()
    await world.until(lambda: "default/slow" not in world.api.pods())


async def test_environment_wiped_by_a_program_does_not_hide_it(world: World) -> None:
    await world.boot()
    world.api.add_pod("wiped", {"containers": [sh("env -i sleep 611 & exec env -i sleep 612")]})
    await world.phase("wiped", "Running")
    running = json.loads(next(world.root.glob("pods/*/containers/main/0/running.json")).read_text())
    os.kill(running["shim"], 9)
    await world.phase("wiped", "Failed")
    await world.until(lambda: not processes.group_lives(running["pid"]))


async def test_all_pods_end_when_the_node_is_gone(world: World) -> None:
    manager = await world.boot()
    for name in ("x", "y"):
        world.api.add_pod(name, {"containers": [sh("sleep 600")]})
    await world.phase("x", "Running")
    await world.phase("y", "Running")
    assert len(manager.queries.pods()) == 2
    await manager.end_all_pods()
    assert world.processes() == []
    assert not list(world.root.glob("pods/*"))
    assert set(world.api.pods()) == {"default/x", "default/y"}


async def test_two_pods_cannot_take_the_same_room(world: World) -> None:
    await world.boot()
    for name in ("fat", "thick"):
        world.api.add_pod(name, {"containers": [sh("sleep 600", resources={"requests": {"cpu": "3"}})]})
    await world.until(lambda: sorted(pod["status"]["phase"] for pod in world.api.pods().values()) == ["Failed", "Running"])
    failed = next(pod for pod in world.api.pods().values() if pod["status"]["phase"] == "Failed")
    assert failed["status"]["reason"] == "OutOfcpu"


@pytest.mark.skipif(USERS is None, reason="only root can start programs as somebody else")
async def test_users_are_kept_apart(world: World) -> None:
    await world.boot()
    world.api.add("secrets", "keys", {"k": "c2VjcmV0"})
    mount = {"volumeMounts": [{"name": "keys", "mountPath": "/keys"}]}
    others = "$HOME/../../../main/sandbox/0/keys/k || cat $HOME/../../../../volumes/keys/2001/k"
    spec = {
        "volumes": [{"name": "keys", "secret": {"secretName": "keys"}}],
        "securityContext": {"runAsGroup": 3000},
        "containers": [
            {**sh("id -u; id -g; cat $HOME/keys/k; sleep 600", securityContext={"runAsUser": 2001}), **mount},
            {**sh(f"id -u; cat $HOME/keys/k; exec 2>&1; cat {others} || echo refused"), **mount, "name": "other"},
        ],
    }
    world.api.add_pod("apart", spec)
    await world.until(lambda: "terminated" in world.api.pod("apart")["status"]["containerStatuses"][1]["state"])
    assert (await world.log("apart", "main")).split()[:2] == ["2001", "3000"]
    log = await world.log("apart", "other")
    assert log.splitlines()[0] == str(world.user("apart"))
    assert log.splitlines()[-1] == "refused"
    assert log.count("Permission denied") == 2
    assert log.count("secret") == 1


@pytest.mark.skipif(USERS is None, reason="only root can be led to do what its containers may not")
async def test_a_container_cannot_lead_the_kubelet_elsewhere(world: World, tmp_path: Path) -> None:
    await world.boot()
    treasure = tmp_path / "treasure"
    treasure.mkdir(mode=0o700)
    (treasure / "termination-log").write_text("only for root")
    spec = {
        "restartPolicy": "OnFailure",
        "volumes": [{"name": "e", "emptyDir": {}}],
        "containers": [
            sh(
                f'cd "$HOME"; rm -rf dev tmp; ln -s {treasure} dev; ln -s {treasure} tmp; ln -s {treasure} e/sub; '
                f"test -f e/again || {{ touch e/again; exit 1; }}",
                volumeMounts=[{"name": "e", "mountPath": "/e"}],
            ),
        ],
    }
    world.api.add_pod("sly", spec)
    status = await world.phase("sly", "Succeeded")
    assert status["containerStatuses"][0]["restartCount"] == 1
    assert "only for root" not in json.dumps(status)
    about = treasure.stat()
    assert (about.st_uid, about.st_mode & 0o777) == (0, 0o700)


@pytest.mark.skipif(USERS is None, reason="only root can be led to do what its containers may not")
@pytest.mark.parametrize("where", ["/tmp", "/dev"])
async def test_last_words_in_a_volume_do_not_lead_the_kubelet_elsewhere(world: World, tmp_path: Path, where: str) -> None:
    await world.boot()
    treasure = tmp_path / "treasure"
    treasure.write_text("only for root")
    treasure.chmod(0o600)
    spec = {
        "restartPolicy": "OnFailure",
        "volumes": [{"name": "e", "emptyDir": {}}],
        "containers": [
            sh(
                f'cd "$HOME{where}"; test -L words || {{ ln -s {treasure} words; exit 1; }}',
                volumeMounts=[{"name": "e", "mountPath": where}],
                terminationMessagePath=f"{where}/words",
            ),
        ],
    }
    world.api.add_pod("sly", spec)
    status = await world.phase("sly", "Succeeded")
    assert status["containerStatuses"][0]["restartCount"] == 1
    assert "only for root" not in json.dumps(status)
    assert (treasure.stat().st_uid, treasure.stat().st_mode & 0o777) == (0, 0o600)


@pytest.mark.skipif(USERS is None, reason="only root can be led to do what its containers may not")
async def test_last_words_are_not_those_of_a_file_that_the_container_cannot_read(world: World) -> None:
    await world.boot()
    treasure = world.root / "treasure"
    treasure.write_text("only for root")
    treasure.chmod(0o600)
    world.api.add_pod("sly", {"containers": [sh('until test -f "$HOME/go"; do sleep 0.05; done')]})
    await world.phase("sly", "Running")
    sandbox = world.folder("sly").sandbox("main", 0)
    words = sandbox / "dev/termination-log"
    words.unlink()
    # On a Mac, the container itself can do this.
    os.link(treasure, words)
    (sandbox / "go").touch()
    status = await world.phase("sly", "Succeeded")
    assert "only for root" not in json.dumps(status)


@pytest.mark.skipif(USERS is None, reason="only root can be led to do what its containers may not")
async def test_a_working_folder_does_not_lead_the_kubelet_elsewhere(world: World) -> None:
    await world.boot()
    up = "/.." * 20
    world.api.add_pod("sly", {"containers": [sh("pwd", workingDir=f"{up}{world.root}/made")]})
    await world.phase("sly", "Succeeded")
    sandbox = world.folder("sly").sandbox("main", 0)
    assert (await world.log("sly")).strip() == f"{sandbox}{world.root}/made"
    assert not (world.root / "made").exists()


@pytest.mark.skipif(USERS is None, reason="only root can be led to do what its containers may not")
async def test_a_command_is_not_led_to_where_its_container_may_not_go(world: World) -> None:
    manager = await world.boot()
    # Only root may pass through the first of these folders.
    inner = world.root / "closed" / "inner"
    inner.mkdir(parents=True)
    (inner / "file").write_text("of somebody else")
    inner.chmod(0o755)
    inner.parent.chmod(0o700)
    script = f'cd "$HOME"; rmdir w; ln -s {inner} w; sleep 600'
    world.api.add_pod("slier", {"containers": [sh(script, workingDir="/w")]})
    await world.phase("slier", "Running")
    await world.until(lambda: (world.folder("slier").sandbox("main", 0) / "w").is_symlink())
    for tty in (False, True):
        with pytest.raises(OSError, match="cannot enter the working directory"):
            await manager.queries.exec("default", "slier", "main", ["cat", "file"], stdin=False, tty=tty)


async def test_other_pods_do_not_wait_while_many_files_are_deleted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that restarts may have written millions of files before."""
    await world.boot()
    world.api.add_pod("other", {"containers": [sh("sleep 600")]})
    await world.phase("other", "Running")
    begun, may_end = asyncio.Event(), asyncio.Event()
    delete = leftovers.delete

    async def slow(path: Path) -> None:
        begun.set()
        await may_end.wait()
        await delete(path)

    monkeypatch.setattr(leftovers, "delete", slow)
    script = 'test -f "$HOME/../../../../empty/e/again" || { touch "$HOME/e/again"; exit 1; }'
    spec = {"volumes": [{"name": "e", "emptyDir": {}}], "restartPolicy": "OnFailure"}
    mounts = [{"name": "e", "mountPath": "/e"}]
    world.api.add_pod("many", {**spec, "containers": [sh(script, volumeMounts=mounts)]})
    await world.until(begun.is_set)
    world.api.add_pod("third", {"containers": [sh("sleep 600")]})
    await world.phase("third", "Running")
    may_end.set()
    await world.phase("many", "Succeeded")


@pytest.mark.parametrize(
    ("name", "volume"),
    [
        ("own_host_path", {"name": "owned-v", "hostPath": {"path": "{}/v"}}),
        (
            "write_atomically",
            {"name": "v", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ),
    ],
)
async def test_many_files_are_written_and_handed_over_beside_the_event_loop(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, volume: Json
) -> None:
    threads: list[threading.Thread] = []
    usual = getattr(volumes, name)

    def watched(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return usual(*arguments)

    monkeypatch.setattr(volumes, name, watched)
    await world.boot()
    volume = json.loads(json.dumps(volume).replace("{}/", f"{tmp_path}/"))
    mounts = [{"name": volume["name"], "mountPath": "/v"}]
    world.api.add_pod("one", {"volumes": [volume], "containers": [sh("true", volumeMounts=mounts)]})
    await world.phase("one", "Succeeded")
    assert threads and threading.main_thread() not in threads


@pytest.mark.skipif(USERS is None, reason="only root gives folders away")
async def test_a_sandbox_is_closed_until_it_is_whole(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    folder = PodFolder(tmp_path / "pod")
    sandbox = await launch.make_sandbox(folder, "main", 0)
    owner = user.ContainerUser(2001, 2002)
    mounts = {"name": "main", "volumeMounts": [{"name": "v", "mountPath": "/a/b"}]}
    volumes.link_mounts(mounts, sandbox, {"v": outside}, {}, owner)
    # A program of the same user already runs; it must not get access while the kubelet prepares the folder.
    assert (sandbox.stat().st_uid, sandbox.stat().st_mode & 0o777) == (0, 0o700)
    launch.give_away(sandbox, owner)
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in [sandbox, *sandbox.rglob("*")]} == {(2001, 2002)} | {
        (path.lstat().st_uid, path.lstat().st_gid) for path in [sandbox / "a/b"]
    }
    assert (outside.stat().st_uid, outside.stat().st_mode & 0o777) == (0, 0o700)


def test_an_empty_dir_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "empty" / "e"
    # Left by a kubelet that was killed.
    (tmp_path / "empty" / ".e.new").mkdir(parents=True)
    owner = USERS[0] if USERS else KUBELET.uid
    volumes.make_empty(folder, {user.ContainerUser(owner, owner if USERS else KUBELET.gid)})
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (owner, 0o700)
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["e"]


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Every open fails with EMFILE."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_too_many_open_files_kill_no_container(world: World) -> None:
    manager = await world.boot()
    world.api.add_pod("healthy", {"restartPolicy": "Always", "containers": [sh("sleep 600")]})
    await world.phase("healthy", "Running")
    before = world.processes()
    (worker,) = manager._workers.values()
    with no_descriptors():
        for look in (worker.containers.attempts, lambda: worker.containers.read("main", 0), worker.folder.load):
            with pytest.raises(OSError, match="Too many open files"):
                look()
        with pytest.raises(OSError, match="Too many open files"):
            await worker.step()
    await worker.step()
    assert world.processes() == before
    assert [attempt.state for attempt in worker.attempts["main"]] == ["running"]


async def test_a_stop_that_fails_for_want_of_descriptors_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopper, "RETRY_SECONDS", 0.0)
    manager = await world.boot()
    world.api.add_pod("late", {"containers": [sh("sleep 600")]})
    await world.phase("late", "Running")
    (worker,) = manager._workers.values()
    with no_descriptors():
        stop = Stop("main", 0, 5.0, "test")
        assert worker._stopper.begin(stop)
        await worker._stopper.run(stop)
    assert not worker._stopper.is_stopping("main", 0)
    assert worker._stopper.begin(stop)
    await worker._stopper.run(stop)
    await world.until(lambda: worker.containers.read("main", 0).state == "exited")


async def test_a_pod_whose_file_cannot_be_read_waits_for_the_api_server(world: World) -> None:
    first = await world.boot()
    uid = world.api.add_pod("damaged", {"restartPolicy": "Always", "containers": [sh("sleep 600")]})["metadata"]["uid"]
    await world.phase("damaged", "Running")
    before = world.processes()
    await first.stop(end_pods=False)
    (world.root / f"pods/{uid}/pod.json").write_text('{"metadata": {"na')
    manager = PodManager(root=world.root, node_name="node-1", kube=first.kube, settings=world.settings)
    world.managers.append(manager)
    await manager.start()
    assert (manager._workers, world.processes()) == ({}, before)
    manager.sync(world.api.pods())
    await manager._workers[uid].step()
    assert world.processes() == before
    assert manager._workers[uid].attempts["main"][-1].state == "running"
    assert manager._workers[uid].accepted


async def test_a_pod_whose_file_is_broken_and_that_is_deleted_is_ended(world: World) -> None:
    first = await world.boot()
    world.api.add_pod("broken", {"containers": [sh("trap '' TERM; while :; do sleep 0.1; done")]}, uid="broken-uid")
    await world.phase("broken", "Running")
    assert world.processes()
    before = world.processes()
    await first.stop(end_pods=False)
    (world.root / "pods/broken-uid/pod.json").write_text('{"metadata": {"na')
    del world.api.objects["/api/v1/namespaces/default/pods/broken"]
    await world.boot()
    await world.until(lambda: not any(alive(pid) for pid in before))
    await world.until(lambda: not (world.root / "pods/broken-uid").exists())


LEAVER = "(trap '' TERM HUP; exec setsid sleep 600) & echo said"


async def test_exec_ends_with_its_command_not_with_what_it_leaves_behind(world: World) -> None:
    manager = await world.boot()
    queries = manager.queries
    world.api.add_pod("shell", {"terminationGracePeriodSeconds": 1, "containers": [sh("sleep 600")]})
    await world.phase("shell", "Running")
    async with asyncio.timeout(60):
        session = await queries.exec("default", "shell", "main", ["sh", "-c", LEAVER + "; exit 4"], stdin=False, tty=False)
        assert b"".join([data async for data in session.stdout]) == b"said\n"
        assert await session.wait() == 4
        await session.kill()
        await session.kill()
        # A session that is closed while another process holds its streams.
        session = await queries.exec("default", "shell", "main", ["sh", "-c", LEAVER + "; sleep 600"], stdin=False, tty=False)
        assert await anext(aiter(session.stdout)) == b"said\n"
        await session.kill()
        assert len(world.processes()) >= 2, "what it left in the background goes on, as in any container"
        folder = world.managers[-1]._workers[world.api.pod("shell")["metadata"]["uid"]].folder
        assert await exec_session.run(folder, "main", 0, ["sh", "-c", LEAVER], 10) == (0, "said")


async def test_a_slow_reader_of_exec_gets_all_of_it(world: World) -> None:
    manager = await world.boot()
    queries = manager.queries
    world.api.add_pod("shell", {"containers": [sh("sleep 600")]})
    await world.phase("shell", "Running")
    session = await queries.exec("default", "shell", "main", ["sh", "-c", "head -c 150000 /dev/zero"], stdin=False, tty=False)
    taken = await anext(aiter(session.stdout))
    # The command ends long before the rest is read.
    assert await session.wait() == 0
    taken += b"".join([data async for data in session.stdout])
    assert len(taken) == 150_000
    await session.kill()


def _full_disk(monkeypatch: pytest.MonkeyPatch, *names: str) -> set[str]:
    """Files of these names cannot be written; empty the set to make room."""
    full, write = set(names), files.write_file

    def refuse(path: str, text: str) -> None:
        if Path(path).name in full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        write(path, text)

    monkeypatch.setattr(files, "write_file", refuse)
    return full


async def test_a_terminal_whose_reader_stalls_blocks_the_program(world: World) -> None:
    manager = await world.boot()
    world.api.add_pod("flood", {"containers": [sh("sleep 600")]})
    await world.phase("flood", "Running")
    count = "i=0; while :; do i=$((i+1)); echo $i; echo $i > $CONTAINER_SANDBOX_MOUNT_POINT/count; done"
    session = await manager.queries.exec("default", "flood", "main", ["sh", "-c", count], stdin=False, tty=True)
    output = aiter(session.stdout)
    assert (await asyncio.wait_for(anext(output), 60)).startswith(b"1\r\n")
    file = next(world.root.glob("pods/*/containers/main/sandbox/0")) / "count"

    async def settled() -> str:
        """The program's last output, once it no longer changes."""
        before = ""
        while before != (now := file.read_text() if file.exists() else "") or not now:
            before = now
            await asyncio.sleep(0.1)
        return now

    stalled = await asyncio.wait_for(settled(), 60)
    # The size of the terminal's buffer.
    assert int(stalled) < 20_000
    # Linux lets the writer go on only once enough of what the terminal holds has been read.
    async with asyncio.timeout(60):
        while file.read_text() in ("", stalled):
            await anext(output)
    await session.kill()
    assert [data async for data in session.stdout] == []


async def test_a_full_disk_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    full = _full_disk(monkeypatch, "spec.json")
    manager = await world.boot()
    world.api.add_pod("late", {"containers": [sh("sleep 600")]})
    await world.until(lambda: state(world.api.pod("late")["status"])["waiting"]["reason"] == "RunContainerError")
    assert "No space left" in state(world.api.pod("late")["status"])["waiting"]["message"]
    full.clear()
    manager.settings = world.settings
    status = await world.phase("late", "Running")
    assert status["containerStatuses"][0]["restartCount"] == 0


async def test_a_pod_is_not_accepted_before_it_is_on_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    full = _full_disk(monkeypatch, "pod.json")
    manager = await world.boot()
    uid = world.api.add_pod("late", {"containers": [sh("sleep 600")]})["metadata"]["uid"]
    worker = manager._workers[uid]
    with pytest.raises(OSError, match="No space left"):
        await worker.step()
    assert not worker.accepted
    assert world.processes() == []
    full.clear()
    worker.wake()
    await world.phase("late", "Running")
    full.add("pod.json")
    # An event about a running pod must not end the kubelet.
    pod = world.api.pod("late")
    world.api.put("/api/v1/namespaces/default/pods/late", {**pod, "metadata": {**pod["metadata"], "labels": {"new": "one"}}})
    assert manager._workers[uid].pod["metadata"]["labels"] == {"new": "one"}


async def test_a_pod_ends_on_a_full_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.boot()
    spec = {"terminationGracePeriodSeconds": 1, "containers": [sh("trap '' TERM; echo up; while :; do sleep 0.1; done")]}
    world.api.add_pod("ends", spec)
    await world.phase("ends", "Running")
    _full_disk(monkeypatch, "stop", "pod.json")
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.2)
    world.api.delete_pod("ends", grace=1)
    await world.until(lambda: "default/ends" not in world.api.pods())
    assert world.processes() == []


def test_exit_code_is_written_when_there_is_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = object.__new__(owner.Owner)
    one.folder, one.started, one.grace_exceeded = str(tmp_path), 1.0, False
    full = _full_disk(monkeypatch, "exit.json")
    slept: list[float] = []

    def room_after_three(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            full.clear()

    monkeypatch.setattr(time, "sleep", room_after_three)
    one.write_exit(7, 0, "Error", "")
    assert json.loads((tmp_path / "exit.json").read_text())["exitCode"] == 7
    assert len(slept) == 3
    full.add("exit.json")
    monkeypatch.setattr(owner, "EXIT_SECONDS", 0.0)
    with pytest.raises(OSError, match="No space left"):
        one.write_exit(7, 0, "Error", "")


def test_a_ps_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    spawn, children = os.posix_spawn, []

    def hang(path: str, argv: list[str], env: dict[str, str], **more: Any) -> int:
        children.append(spawn("/bin/sleep", ["sleep", "600"], env, **more))
        return children[-1]

    monkeypatch.setattr(os, "posix_spawn", hang)
    monkeypatch.setattr(processes, "PS_SECONDS", 0.05)
    assert processes.ask_ps(["-ax"]) == b""
    assert not exists(children[0])


def test_a_process_is_named_by_boot_and_start() -> None:
    mine = processes.birth(os.getpid())
    assert mine and mine == processes.birth(os.getpid())
    assert mine != processes.birth(1)
    assert processes.birth(2**22 + 1) == ""


async def test_a_kubelet_that_ends_while_it_starts_a_container_fails_no_pod(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def hang(*_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(ContainerRuntime, "_run_shim", hang)
        first = await world.boot()
        world.api.add_pod("once", {"restartPolicy": "Never", "containers": [sh("echo up; sleep 600")]})
        await asyncio.wait_for(reached.wait(), 60)
        # A reader must not mistake it for dead in the meantime.
        assert await world.log("once") == ""
        assert not list(world.root.glob("pods/*/containers/main/0/exit.json"))
        await first.stop(end_pods=False)
    await world.boot()
    status = await world.phase("once", "Running")
    assert status["containerStatuses"][0]["restartCount"] == 0
    await world.until(lambda: b"up" in next(world.root.glob("pods/*/logs/main/0.log")).read_bytes())


async def test_a_second_shim_leaves_the_attempt_alone(world: World) -> None:
    await world.boot()
    world.api.add_pod("one", {"containers": [sh("echo up; exec sleep 600")]})
    await world.phase("one", "Running")
    await world.until(lambda: b"up" in next(world.root.glob("pods/*/logs/main/0.log")).read_bytes())
    before = world.processes()
    folder = next(world.root.glob("pods/*/containers/main/0"))
    late = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(Path(files.__file__).parent), str(folder), env={}
    )
    assert await asyncio.wait_for(late.wait(), 60) == 0
    await world.until(lambda: world.processes() == before)
    assert await world.log("one") == "up\n"
    assert world.api.pod("one")["status"]["phase"] == "Running"


async def test_an_ephemeral_container_ends_with_the_reason_and_the_pod_goes_on(world: World) -> None:
    manager = await world.boot()
    pod = world.api.add_pod("one", {"containers": [sh("echo up; sleep 3600")]})
    await world.phase("one", "Running")
    debugger = {"name": "debugger", "image": "busybox"}
    spec = {**pod["spec"], "ephemeralContainers": [debugger]}
    world.api.put("/api/v1/namespaces/default/pods/one", {**world.api.pod("one"), "spec": spec})
    await world.until(lambda: world.api.pod("one")["status"]["ephemeralContainerStatuses"])
    status = world.api.pod("one")["status"]
    ended = status["ephemeralContainerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], "use kubectl exec" in ended["message"]) == ("NotSupported", True)
    assert status["phase"] == "Running"
    with pytest.raises(ContainerNotRunning, match="does not run ephemeral containers"):
        manager.queries.open_log("default", "one", "debugger", LogOptions())
    writes = world.api.status_writes
    manager.settings = manager.settings
    await world.until(lambda: world.api.pod("one")["status"]["containerStatuses"][0]["ready"])
    assert world.api.status_writes == writes


async def test_a_container_that_waits_for_its_back_off_starts_when_the_machine_boots(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "BACKOFF_FIRST_SECONDS", 600.0)
    world.settings = replace(world.settings, boot="first")
    await world.boot()
    world.api.add_pod("one", {"restartPolicy": "Always", "containers": [sh("exit 1")]})
    await world.until(lambda: state(world.api.pod("one")["status"])["waiting"]["reason"] == "CrashLoopBackOff")
    await world.managers[-1].stop(end_pods=False)
    assert not world.folder("one").attempt("main", 2).exists()
    world.settings = replace(world.settings, boot="second")
    await world.boot()
    await world.until(lambda: (world.folder("one").attempt("main", 2) / "exit.json").exists())


NODE = "/api/v1/nodes/node-1"


def node(labels: dict[str, str], *taints: Json) -> Json:
    return {"metadata": {"name": "node-1", "labels": labels}, "spec": {"taints": list(taints)}}


@pytest.mark.parametrize("watched", [True, False])
async def test_pods_are_compared_with_the_node_as_it_is_now(world: World, watched: bool) -> None:
    """An administrator has moved the Node to another pool, and has kept pods off, since the kubelet has set its labels."""
    world.settings = replace(world.settings, labels={"pool": "old", "kept": "yes"})
    drained = {"key": "drained", "effect": "NoExecute"}
    current = node({"pool": "new"}, drained, {"key": "mac", "effect": "NoSchedule"})
    world.node = current if watched else None
    world.api.put(NODE, current)
    await world.boot()
    tolerates = [{"key": "drained", "operator": "Exists"}]

    def add(name: str, selector: dict[str, str], tolerations: list[Json]) -> None:
        world.api.add_pod(name, {"containers": [sh("true")], "nodeSelector": selector, "tolerations": tolerations})

    add("old", {"pool": "old"}, tolerates)
    add("removed", {"kept": "yes"}, tolerates)
    add("untolerated", {"pool": "new"}, [])
    add("fits", {"pool": "new"}, tolerates)
    await world.phase("fits", "Succeeded")
    for name, reason in (("old", "NodeAffinity"), ("removed", "NodeAffinity"), ("untolerated", "TaintToleration")):
        assert (await world.phase(name, "Failed"))["reason"] == reason


async def test_what_the_kubelet_gives_the_node_counts_while_it_cannot_be_read(world: World) -> None:
    world.settings = replace(world.settings, labels={"pool": "old"})
    world.node = None
    await world.boot()
    for name, pool in (("fits", "old"), ("elsewhere", "new")):
        world.api.add_pod(name, {"containers": [sh("true")], "nodeSelector": {"pool": pool}})
    await world.phase("fits", "Succeeded")
    assert (await world.phase("elsewhere", "Failed"))["reason"] == "NodeAffinity"


async def test_pods_that_are_rejected_delay_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user may bind thousands of pods to a node: the Node is not read for each of them, one after the other."""
    reads, answer = 0, asyncio.Event()
    get = world.api.get_or_none

    async def slow(path: str) -> Json | None:
        nonlocal reads
        if path == NODE:
            reads += 1
            await answer.wait()
            return node({"late": "here"})
        return await get(path)

    monkeypatch.setattr(world.api, "get_or_none", slow)
    await world.boot()
    for number in range(20):
        world.api.add_pod(f"large-{number}", {"containers": [sh("true", resources={"requests": {"memory": "1Ti"}})]})
        world.api.add_pod(f"elsewhere-{number}", {"containers": [sh("true")], "nodeSelector": {"late": "there"}})
    world.api.add_pod("late", {"containers": [sh("true")], "nodeSelector": {"late": "here"}})
    world.api.add_pod("fits", {"containers": [sh("true")]})
    await world.phase("fits", "Succeeded")
    await world.until(lambda: [world.api.pod(f"large-{number}")["status"]["phase"] for number in range(20)] == ["Failed"] * 20)
    assert reads == 1 and world.api.pod("late")["status"]["phase"] == "Pending"
    answer.set()
    await world.phase("late", "Succeeded")
    await world.until(
        lambda: {world.api.pod(f"elsewhere-{number}")["status"].get("reason") for number in range(20)} == {"NodeAffinity"}
    )
    assert reads <= 2

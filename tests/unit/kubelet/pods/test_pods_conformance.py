"""Steps of the node conformance tests of Kubernetes with real processes, for containers and for sidecars."""

import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from thunderfleet_kubelet.containers import usage
from thunderfleet_lib.net import tls

from tests.support.network import grpchealth
from tests.support.pods import World, sh

Json = dict[str, Any]
KINDS = ("container", "sidecar")
# What is to fail fails at once, or says its own limit: on a busy machine nothing else is to fail for want of time.
QUICK = {"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 60}
RUNS = "trap 'exit 0' TERM; while :; do sleep 0.05; done"
# Healthy for a moment after each start.
SICK = "touch $HOME/healthy; sleep 0.2; rm $HOME/healthy; " + RUNS
CAT = {"exec": {"command": ["sh", "-c", "cat $HOME/healthy"]}}
TRUE: Json = {"exec": {"command": ["true"]}}
FALSE: Json = {"exec": {"command": ["false"]}}
SLOW: Json = {"exec": {"command": ["sleep", "3600"]}}
SLOW_FAILURE: Json = {"exec": {"command": ["sh", "-c", "sleep 3600; exit 1"]}}


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server of which ``/good`` is healthy and ``/led`` leads to ``/bad``."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/led":
            return web.Response(status=302, headers={"Location": "/bad"})
        if request.path == "/away":
            return web.Response(status=302, headers={"Location": "http://0.0.0.0/bad"})
        return web.Response(status=200 if request.path == "/good" else 500)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.fixture(scope="module")
def grpc() -> Iterator[grpchealth.Server]:
    with grpchealth.serving() as found:
        yield found


def add(world: World, kind: str, name: str, script: str, **more: Any) -> None:
    container = sh(script, **more)
    spec: Json = {"containers": [container], "restartPolicy": "Always"}
    if kind == "sidecar":
        beside = {**container, "name": "main", "restartPolicy": "Always"}
        spec = {"initContainers": [beside], "containers": [{**sh(RUNS), "name": "other"}], "restartPolicy": "Always"}
    world.api.add_pod(name, spec)


def of(world: World, kind: str, name: str) -> Json:
    """The status of the container."""
    statuses: list[Json] = world.api.pod(name)["status"]["initContainerStatuses" if kind == "sidecar" else "containerStatuses"]
    return statuses[0]


async def until_all(world: World, names: Iterable[str], holds: Callable[[str], object]) -> None:
    for name in names:
        await world.until(partial(holds, name), 60)


def results(world: World, name: str, probe: str) -> dict[str, int]:
    """How often a probe had each result."""
    found = world.managers[-1].queries.probe_results()
    return {one.result: one.count for one in found if (one.pod, one.kind, one.container) == (name, probe, "main")}


@pytest.mark.parametrize("kind", KINDS)
async def test_liveness_and_startup_probes_restart_what_is_not_healthy(
    world: World, kind: str, port: int, grpc: grpchealth.Server
) -> None:
    await world.boot()

    def http(path: str) -> Json:
        return {"httpGet": {"host": "127.0.0.1", "port": port, "path": path}}

    tcp = {"tcpSocket": {"host": "127.0.0.1", "port": port}}
    restarted = {
        "sick": {"livenessProbe": {**CAT, **QUICK}},
        "bad": {"livenessProbe": {**http("/bad"), **QUICK}},
        "led": {"livenessProbe": {**http("/led"), **QUICK}},
        "slow": {"livenessProbe": {**SLOW, **QUICK, "timeoutSeconds": 1}},
        "closed": {"livenessProbe": {"grpc": {"port": 1}, **QUICK}},
        "not-serving": {"livenessProbe": {"grpc": {"port": grpc.port, "service": "sick"}, **QUICK}},
        "slow-failure": {"livenessProbe": {**SLOW_FAILURE, **QUICK, "timeoutSeconds": 1}},
        "not-started": {"startupProbe": {**FALSE, **QUICK}, "livenessProbe": {**TRUE, **QUICK}},
        "started": {"startupProbe": {**TRUE, **QUICK}, "livenessProbe": {**FALSE, **QUICK}},
    }
    healthy = {
        "well": {"livenessProbe": {**TRUE, **QUICK}},
        "good": {"livenessProbe": {**http("/good"), **QUICK}},
        "away": {"livenessProbe": {**http("/away"), **QUICK}},
        "open": {"livenessProbe": {**tcp, **QUICK}},
        "serving": {"livenessProbe": {"grpc": {"port": grpc.port}, **QUICK}},
        "delayed": {"startupProbe": {**FALSE, **QUICK, "failureThreshold": 1000}, "livenessProbe": {**FALSE, **QUICK}},
    }
    for name, probes in {**restarted, **healthy}.items():
        add(world, kind, name, SICK, **probes)
    await until_all(world, restarted, lambda name: of(world, kind, name)["restartCount"] >= 1)
    await world.until(lambda: results(world, "delayed", "startup").get("failed", 0) >= 3, 60)
    assert results(world, "delayed", "liveness") == {}, "the startup probe holds it back"
    lively = ("well", "good", "away", "open", "serving")
    await until_all(world, lively, lambda name: results(world, name, "liveness").get("successful", 0) >= 3)
    assert [of(world, kind, name)["restartCount"] for name in healthy] == [0] * len(healthy)
    await world.until(lambda: "ProbeWarning" in world.api.reasons(), 60)
    warned = {event["involvedObject"]["name"] for event in world.api.events if event["reason"] == "ProbeWarning"}
    assert warned == {"away"}, "a redirect to another host is healthy, and perhaps not what was meant"


@pytest.mark.parametrize("kind", KINDS)
async def test_readiness_follows_its_probe_and_ends_with_the_pod(world: World, kind: str) -> None:
    await world.boot()
    slow = {**SLOW, **QUICK, "timeoutSeconds": 1}
    add(world, kind, "slow", RUNS, readinessProbe=slow)
    add(world, kind, "never", RUNS, readinessProbe={**FALSE, **QUICK})
    add(world, kind, "later", RUNS, readinessProbe={**TRUE, **QUICK, "initialDelaySeconds": 2})
    # Not ready as soon as it is asked to end; its liveness probe would fail from then on too.
    script = "touch $HOME/healthy; trap 'rm $HOME/healthy; while [ ! -f $HOME/go ]; do sleep 0.05; done; exit 0' TERM; "
    both = {"readinessProbe": {**CAT, **QUICK}, "livenessProbe": {**CAT, **QUICK, "initialDelaySeconds": 1}}
    # Its first liveness probe waits until it has said that it is healthy, however late it does.
    both["startupProbe"] = {**CAT, **QUICK, "failureThreshold": 1000}
    add(world, kind, "leaves", script + "while :; do sleep 0.05; done", **both)
    started = {"startupProbe": {**TRUE, **QUICK}, "readinessProbe": {**TRUE, **QUICK, "periodSeconds": 3600}}
    add(world, kind, "at-once", RUNS, **started)
    await until_all(world, ("later", "leaves", "at-once"), lambda name: of(world, kind, name)["ready"])
    since = of(world, kind, "later")["state"]["running"]["startedAt"]
    assert results(world, "later", "readiness").get("failed", 0) == 0, since
    world.api.delete_pod("leaves", grace=120)
    await world.until(lambda: not of(world, kind, "leaves")["ready"], 60)
    await world.until(lambda: results(world, "leaves", "readiness").get("failed", 0) >= 2, 60)
    assert of(world, kind, "leaves")["restartCount"] == 0, "no liveness probe ends it before its time"
    (world.folder("leaves").sandbox("main", 0) / "go").touch()
    await world.until(lambda: "/api/v1/namespaces/default/pods/leaves" not in world.api.objects, 60)
    await until_all(world, ("slow", "never"), lambda name: results(world, name, "readiness").get("failed", 0) >= 2)
    for name in ("slow", "never"):
        assert not of(world, kind, name)["ready"] and of(world, kind, name)["restartCount"] == 0


async def test_last_words_come_from_the_file_or_from_the_log(world: World) -> None:
    await world.boot()
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    scripts: dict[str, tuple[str, str, Json]] = {
        "file": ("echo from the file > $HOME/dev/termination-log; echo log", "from the file\n", policy),
        "log": ("printf 'from the log'; exit 1", "from the log", policy),
        "silent": ("echo log", "", policy),
        "elsewhere": ("echo there > $HOME/tmp/words", "there\n", {"terminationMessagePath": "/tmp/words"}),
    }
    for name, (script, _, more) in scripts.items():
        world.api.add_pod(name, {"containers": [sh(script, **more)]})
    for name, (script, expected, _) in scripts.items():
        status = await world.phase(name, "Failed" if "exit 1" in script else "Succeeded")
        assert status["containerStatuses"][0]["state"]["terminated"].get("message", "") == expected, name


@pytest.mark.parametrize("kind", KINDS)
async def test_hooks_run_after_the_start_and_before_the_end(world: World, kind: str, port: int) -> None:
    await world.boot()
    hook = {"exec": {"command": ["sh", "-c", "echo hook > $HOME/hook"]}}
    add(
        world,
        kind,
        "after",
        "while [ ! -f $HOME/hook ]; do sleep 0.05; done; echo seen; " + RUNS,
        lifecycle={"postStart": hook},
    )
    before = "trap 'cat $HOME/hook; exit 0' TERM; while :; do sleep 0.05; done"
    add(world, kind, "before", before, lifecycle={"preStop": hook})
    failing = {"httpGet": {"host": "127.0.0.1", "port": port, "path": "/bad"}}
    add(world, kind, "failed", RUNS, lifecycle={"postStart": failing})
    await world.phase("after", "Running")
    await world.phase("before", "Running")

    seen = world.folder("after").log("main", 0)
    await world.until(lambda: "seen" in seen.read_text(), 60)
    await world.until(lambda: "FailedPostStartHook" in world.api.reasons(), 60)
    log = world.folder("before").log("main", 0)
    world.api.delete_pod("before")
    await world.until(lambda: not log.exists() or "hook" in log.read_text(), 60)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[tuple[dict[str, int], list[tuple[str, str]]]]:
    """The ports of a server without and with TLS, and what it was asked for: scheme and path."""
    asked: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.headers["X-Test"] == "v"
        asked.append((request.scheme, request.path))
        return web.Response()

    # Nobody has signed it, as hooks do not verify.
    key, name = tls.new_key(), tls.subject("server")
    validity = tls.Validity(datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
    certificate = tls.build_certificate(name, key.public_key(), tls.Issuer(name, key), validity)
    (tmp_path / "server.pem").write_bytes(tls.certificate_pem(certificate) + tls.key_pem(key))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem")
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    for one in (None, context):
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=one).start()
    ports = [address[1] for address in runner.addresses]
    yield dict(zip(("http", "https"), ports, strict=True)), asked
    await runner.cleanup()


@pytest.mark.parametrize("kind", KINDS)
async def test_hooks_ask_servers_with_and_without_tls(
    world: World, kind: str, servers: tuple[dict[str, int], list[tuple[str, str]]]
) -> None:
    ports, asked = servers
    await world.boot()
    for scheme, port in ports.items():
        where = {"host": "127.0.0.1", "port": port, "scheme": scheme.upper(), "httpHeaders": [{"name": "X-Test", "value": "v"}]}
        hooks = {hook: {"httpGet": {**where, "path": f"/{hook}"}} for hook in ("postStart", "preStop")}
        add(world, kind, scheme, RUNS, lifecycle=hooks)
    await world.until(lambda: sorted(asked) == [(scheme, "/postStart") for scheme in ports], 60)
    for scheme in ports:
        await world.phase(scheme, "Running")
        world.api.delete_pod(scheme, grace=120)
    await world.until(lambda: not world.api.pods(), 60)
    assert sorted(asked[2:]) == [(scheme, "/preStop") for scheme in ports]


async def test_a_hook_that_sleeps_holds_no_pod_whose_container_has_ended(world: World) -> None:
    await world.boot()
    waits = "trap '' TERM; while [ ! -e $HOME/go ]; do sleep 0.05; done"
    for name, seconds in (("long", 3600), ("none", 0)):
        script = waits if seconds else RUNS
        world.api.add_pod(name, {"containers": [sh(script, lifecycle={"preStop": {"sleep": {"seconds": seconds}}})]})
        await world.phase(name, "Running")
        world.api.delete_pod(name, grace=7200)
    await world.until(lambda: list(world.api.pods()) == ["default/long"], 60)
    (world.folder("long").sandbox("main", 0) / "go").touch()
    await world.until(lambda: not world.api.pods(), 60)


async def test_new_labels_change_nothing_that_runs(world: World) -> None:
    await world.boot()
    world.api.add_pod("one", {"containers": [sh(RUNS)]})
    before = await world.phase("one", "Running")
    pod = world.api.pod("one")
    world.api.put("/api/v1/namespaces/default/pods/one", {**pod, "metadata": {**pod["metadata"], "labels": {"time": "later"}}})

    def known() -> list[Json]:
        return [one["metadata"].get("labels") for one in world.managers[-1].queries.pods()]

    await world.until(lambda: known() == [{"time": "later"}])
    await world.managers[-1].stop(end_pods=False)
    await world.boot()
    await world.until(lambda: known() == [{"time": "later"}])
    assert world.api.pod("one")["status"]["containerStatuses"] == before["containerStatuses"]


async def test_a_container_that_does_nothing_has_used_some_cpu_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """metrics-server skips the whole pod of a container whose CPU time is 0."""
    await world.boot()
    monkeypatch.setattr(usage, "by_marker", lambda groups: {marker: usage.Usage(0.0, 2048, 4096) for marker in groups})
    world.api.add_pod("idle", {"containers": [sh("sleep 3600")]})
    await world.phase("idle", "Running")
    (found,) = await world.managers[-1].queries.usage()
    assert 0 < found.cpu_seconds < 0.01 and (found.memory_bytes, found.resident_bytes, found.gpu_bytes) == (4096, 2048, None)

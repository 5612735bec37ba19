"""What shows a fleet and explains it: from objects to text, and what is said when a part may not be read."""

import asyncio
import fcntl
import gc
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen
from xml.etree import ElementTree

import pytest
import yaml
from rich.console import Console
from thunderfleet_cli.cli import main
from thunderfleet_cli.view import plan as planning
from thunderfleet_cli.view import ui
from thunderfleet_cli.view.page import Page
from thunderfleet_cli.view.picture import why_unread
from thunderfleet_cli.view.reports import cables, events, logs, status, top, topology
from thunderfleet_cli.view.reports import why as shown
from thunderfleet_cli.view.reports.svg import svg
from thunderfleet_lib.kube import ApiError
from thunderfleet_localcluster.cluster_folder import ClusterFolder
from thunderfleet_view import facts, why
from thunderfleet_view.facts import Picture
from thunderfleet_view.health import Health, of_condition
from thunderfleet_view.problems import mac_problem

Json = dict[str, Any]

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LINK = "studio-1.tb1--studio-2.tb1"
HOSTILE = "\x1b[31m<script>alert(1)</script>\n[bold]x"


def conditions(**found: tuple[str, str, str]) -> list[Json]:
    return [{"type": kind, "status": one[0], "reason": one[1], "message": one[2]} for kind, one in found.items()]


def node(name: str, ready: str = "True", message: str = "posts", **labels: str) -> Json:
    ready_condition = conditions(Ready=(ready, "KubeletReady", message))
    status = {"conditions": ready_condition, "capacity": {"cpu": "24"}}
    return {"metadata": {"name": name, "labels": {"kubernetes.io/os": "darwin", **labels}}, "status": status}


def full(name: str) -> Json:
    """A Node whose disk is full."""
    found = node(name)
    found["status"]["conditions"] += conditions(DiskPressure=("True", "HasPressure", "nodefs.available is below 10%"))
    return found


def profile(name: str, links: tuple[str, ...] = (), quarantined: str = "False") -> Json:
    hardware = {"chip": "Apple M3 Ultra", "memoryBytes": 96 << 30, "gpuMemoryLimitBytes": 80 << 30}
    groups = [{"name": "default/chat-0", "epoch": 1, "links": list(links)}] if links else []
    found = conditions(Quarantined=(quarantined, "RDMAHung", "restart the Mac"))
    return {"metadata": {"name": name}, "status": {"hardware": hardware, "groups": groups, "conditions": found}}


def link(connected: str = "True", message: str = "both ends detect each other", rdma: str = "True") -> Json:
    reason = "Connected" if connected == "True" else "PortDown"
    found = conditions(Connected=(connected, reason, message), RDMAUsable=(rdma, "Usable", ""))
    ends = [{"node": one, "port": 1, "seesPeer": connected == "True"} for one in ("studio-1", "studio-2")]
    spec = {"a": {"node": "studio-1", "port": 1}, "b": {"node": "studio-2", "port": 1}}
    state = {"conditions": found, "speed": "80G", "gbps": "38.4/37.9", "rdma": "Usable", "endpoints": ends}
    return {"metadata": {"name": LINK}, "spec": spec, "status": state}


def deployment(ready: str = "True", state: str = "Ready", message: str = "", failure: Json | None = None) -> Json:
    ranks = [
        {"rank": number, "node": f"studio-{number + 1}", "state": "Serving", "memoryBytes": 40 << 30} for number in range(2)
    ]
    group = {"index": 0, "state": state, "message": message, "ranks": ranks, **({"lastFailure": failure} if failure else {})}
    placed = {kind: ("True", kind, "") for kind in ("ModelResolved", "Placed", "Bootstrapped")}
    found = conditions(**placed, Ready=(ready, "Serving", message), Degraded=("False", "Healthy", ""))
    return {
        "metadata": {"name": "chat", "namespace": "default", "generation": 1},
        "spec": {"model": {"repository": "nobody/tiny"}},
        "status": {"observedGeneration": 1, "groups": [group], "conditions": found, "transport": "JACCL"},
    }


def pod(rank: int = 1, state: Json | None = None) -> Json:
    labels = {"thunderfleet.io/deployment": "chat", "thunderfleet.io/group": "0", "thunderfleet.io/rank": str(rank)}
    statuses = [{"name": "runner", "state": state or {"running": {}}}]
    metadata = {"name": f"chat-0-1-{rank}", "namespace": "default", "labels": labels}
    status = {"phase": "Running", "containerStatuses": statuses}
    return {"metadata": metadata, "spec": {"nodeName": f"studio-{rank + 1}"}, "status": status}


OPERATOR: Json = {"metadata": {"name": "operator"}, "status": {"conditions": conditions(Ready=("True", "", ""))}}


def picture(**parts: Any) -> Picture:
    whole: Json = {
        "namespace": "default",
        "nodes": [node("studio-1"), node("studio-2"), node("box", **{"kubernetes.io/os": "linux"})],
        "profiles": [profile("studio-1", (LINK,)), profile("studio-2", (LINK,))],
        "links": [link()],
        "deployments": [deployment()],
        "pods": [pod(0), pod(1)],
        "operators": [OPERATOR],
    }
    return Picture(**{**whole, **parts})


@contextmanager
def paper() -> Iterator[tuple[Page, io.StringIO]]:
    text = io.StringIO()
    yield Page(Console(file=text, highlight=False, soft_wrap=True)), text


# --- status ------------------------------------------------------------------------------------------------------------------


def test_status_shows_what_serves_and_on_which_macs() -> None:
    with paper() as (page, text):
        status.show(picture(), page, NOW)
    said = text.getvalue()
    assert "nobody/tiny" in said and "1/1" in said and "studio-1,studio-2" in said
    assert "M3 Ultra" in said and "96Gi" in said and "box" not in said
    assert "cables: 1 of 1 without a problem" in said


def test_status_names_each_problem() -> None:
    found = picture(
        nodes=[node("studio-1", "False", "the disk is full"), node("studio-2"), node("studio-3")],
        profiles=[profile("studio-2", quarantined="True")],
        links=[link("False", "plug it in")],
        deployments=[deployment("False", "Waiting", "rank 1 has not joined")],
    )
    values = status.as_values(found)
    assert values["deployments"][0]["problem"].endswith("rank 1 has not joined")
    problems = [mac["problem"] for mac in values["macs"]]
    assert problems == [
        "NotReady: KubeletReady: the disk is full",
        "RDMAHung: restart the Mac",
        "no agent reports on this Mac: check with `kubectl get pods -A -o wide` that one runs there",
    ]
    silent = mac_problem(node("studio-1", "Unknown", "Kubelet stopped posting node status."), None)
    assert silent.endswith("status: check that the Mac is on, that its kubelet runs, and that it reaches the API server")
    assert values["cables"][0]["problem"] == "PortDown: plug it in"


def test_what_others_wrote_reaches_no_terminal_as_a_command() -> None:
    hostile = picture(
        deployments=[deployment("False", "Waiting", HOSTILE)],
        links=[link("False", HOSTILE)],
        nodes=[node("studio-1", "False", HOSTILE)],
    )
    with paper() as (page, text):
        status.show(hostile, page, NOW)
        topology.show(hostile, page)
        cables.show(hostile, page)
        shown.show(why.why(hostile, hostile.deployments[0]), hostile, page)
        page.line("a log: \x1b]0;title\x07")
        page.table(("A",), [("\x9b31m\x1b[31m",)])
    assert not set(text.getvalue()) & set("\x1b\x07\x9b")
    assert "[bold]x" in text.getvalue(), "nothing is markup"


# --- why ---------------------------------------------------------------------------------------------------------------------

FAILURE = {
    "class": "Retry",
    "reason": "PeerLost",
    "rank": 1,
    "node": "studio-2",
    "message": "rank 1 ended",
    "time": "2026-03-01T11:59:00Z",
}


def test_nothing_is_wrong() -> None:
    found = why.why(picture(), deployment())
    assert found.cause is None and all(step.state is why.State.OK for step in found.steps)


def test_a_failure_from_which_the_group_has_recovered_is_shown_and_is_no_problem() -> None:
    found = why.why(picture(), deployment(failure=FAILURE))
    assert found.cause is None and all(step.state is why.State.OK for step in found.steps)
    (step,) = [step for step in found.steps if "last failure" in step.subject]
    assert (step.subject, step.text) == ("last failure, rank 1 on studio-2, recovered", "PeerLost: rank 1 ended")
    assert step.since == FAILURE["time"]


def test_a_deployment_that_nobody_has_reported_on_does_not_serve() -> None:
    new = deployment()
    new["status"] = {}
    found = why.why(picture(deployments=[new]), new)
    assert found.cause is not None and found.cause.subject == "operator"


@pytest.mark.parametrize(
    ("parts", "subject", "text"),
    [
        ({}, "last failure, rank 1 on studio-2", "PeerLost: rank 1 ended"),
        ({"links": [link("False", "plug it in")]}, f"ThunderboltLink {LINK}", "PortDown: plug it in"),
        ({"links": []}, f"ThunderboltLink {LINK}", "no Mac detects this cable"),
        (
            {"nodes": [node("studio-1"), node("studio-2", "Unknown", "no news")]},
            "Node studio-2",
            "NotReady: KubeletReady: no news",
        ),
        ({"nodes": [node("studio-1")]}, "Node studio-2", "there is no such Node"),
        ({"profiles": [profile("studio-1"), profile("studio-2", quarantined="True")]}, "Node studio-2", "RDMAHung"),
        (
            {"nodes": [node("studio-1"), full("studio-2")]},
            "Node studio-2",
            "DiskPressure: nodefs.available is below 10%: delete models or other files from its disk",
        ),
        ({"operators": []}, "operator", "no pod of the operator exists: `kubectl describe deployment"),
    ],
)
def test_the_cause_is_what_is_nearest_to_the_hardware(parts: Json, subject: str, text: str) -> None:
    broken = deployment("False", "BackingOff", "restarts", FAILURE)
    found = why.why(picture(deployments=[broken], **parts), broken)
    assert found.cause is not None
    assert found.cause.subject == subject and found.cause.text.startswith(text)


def unread_requests() -> Json:
    """A deployment that serves, and whose rank 0 cannot read requests."""
    found = deployment()
    found["status"]["groups"][0]["intake"] = "it ended with signal 9"
    found["status"]["groups"][0]["ranks"][0]["pod"] = "chat-0-1-0"
    found["status"]["conditions"][-1] |= {"status": "True", "reason": "IntakeFailed", "message": "group 0: requests fail"}
    return found


def test_an_intake_that_does_not_work_is_the_cause_unless_its_mac_is() -> None:
    found = picture(deployments=[unread_requests()])
    cause = why.why(found, found.deployments[0]).cause
    assert cause is not None and cause.subject == "intake, rank 0 on studio-1 (Pod chat-0-1-0)"
    assert cause.text.endswith("does not work: it ended with signal 9")
    assert "IntakeFailed" in status.as_values(found)["deployments"][0]["problem"]
    short = picture(deployments=[unread_requests()], nodes=[full("studio-1"), node("studio-2")])
    cause = why.why(short, short.deployments[0]).cause
    assert cause is not None and cause.subject == "Node studio-1"


def test_a_pod_that_cannot_start_is_the_cause() -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    broken = deployment("False", "Pending", "pods start")
    found = why.why(picture(pods=[pod(0), pod(1, waiting)]), broken)
    assert found.cause is not None
    assert (found.cause.subject, found.cause.text) == ("Pod chat-0-1-1", "ErrImagePull: no such image")


def test_a_placement_that_is_missing_is_the_cause() -> None:
    broken = deployment("False")
    refused = [{"group": 0, "nodes": ["studio-1"], "message": "needs 10 GiB more"}]
    broken["status"] |= {"groups": [], "unplaceable": refused, "conditions": conditions(Placed=("False", "NoFit", "no room"))}
    found = why.why(picture(), broken)
    assert found.cause is not None and found.cause.text == "needs 10 GiB more"


def test_a_group_that_goes_back_to_a_better_place_does_not_suffer_from_its_old_failure() -> None:
    back = deployment("False", "Draining", "finishes its requests", FAILURE)
    back["status"]["groups"][0]["lostPlace"] = {"links": [LINK], "returning": True}
    found = why.why(picture(deployments=[back]), back)
    assert found.cause is not None and found.cause.text == "Draining: finishes its requests"


def test_a_group_without_a_place_is_the_cause_and_not_one_that_loads() -> None:
    broken = deployment("False", "Loading", "rank 1 loads")
    refused = [{"group": 1, "nodes": ["studio-1"], "message": "needs 10 GiB more"}]
    placed = conditions(Placed=("False", "NoRoom", "group 1: no room"), Ready=("False", "Loading", "rank 1 loads"))
    broken["status"] |= {"unplaceable": refused, "conditions": placed}
    found = why.why(picture(deployments=[broken]), broken)
    assert found.cause is not None and found.cause.text == "needs 10 GiB more"
    assert [step.state for step in found.steps if step.subject == "group 0"] == [why.State.WAITING]


def test_a_model_that_is_on_no_mac_is_the_cause() -> None:
    broken = deployment("False")
    refused = [{"group": 0, "nodes": ["studio-1"], "message": "studio-1 does not have it"}]
    found = conditions(ModelResolved=("False", "ModelNotFound", "no Mac has nobody/tiny"), Placed=("False", "NoFit", "none"))
    waits = [{"index": 0, "state": "Pending", "message": "studio-1 does not have it"}]
    broken["status"] |= {"groups": waits, "unplaceable": refused, "conditions": found}
    cause = why.why(picture(), broken).cause
    assert cause is not None and cause.text == "ModelResolved False: ModelNotFound: no Mac has nobody/tiny"


def test_a_cordoned_mac_and_rdma_that_is_off_harm_nobody_who_serves() -> None:
    cordoned = node("studio-1")
    cordoned["spec"] = {"unschedulable": True}
    found = why.why(picture(nodes=[cordoned, node("studio-2")], links=[link(rdma="False")]), deployment())
    assert found.cause is None
    # It is known, and a reader who sees "unknown" would look for what is not.
    noted = [step for step in found.steps if step.subject == f"ThunderboltLink {LINK}"]
    assert [step.state for step in noted] == [why.State.NOTE] and why.State.UNKNOWN not in {step.state for step in found.steps}
    with paper() as (page, text):
        shown.show(found, picture(), page)
    assert text.getvalue().rstrip().endswith("the model serves; the notes above do not affect it")


# --- cables and topology -----------------------------------------------------------------------------------------------------


def test_a_cable_that_a_group_needs_and_nobody_sees_comes_first() -> None:
    found = picture(profiles=[profile("studio-1", (LINK, "studio-1.tb2--studio-3.tb1"))])
    with paper() as (page, text):
        cables.show(found, page)
    first = text.getvalue().splitlines()[1]
    assert first.startswith("studio-1.tb2--studio-3.tb1") and "default/chat-0" in first and "plug it into these ports" in first
    (known, missing) = cables.as_values(found)
    assert known["seenBy"] == ["studio-1", "studio-2"] and known["neededBy"] == ["default/chat-0"]
    assert missing["connected"] is False


@pytest.mark.parametrize("links", [[], [link("False", "plug it in")]], ids=["gone", "unplugged"])
def test_a_cable_that_a_group_has_left_says_which_group(links: list[Json]) -> None:
    """Some seconds after it was pulled there is no object of it any more, and the group serves elsewhere."""
    moved = deployment()
    moved["status"]["groups"][0]["lostPlace"] = {"nodes": ["studio-1", "studio-2"], "links": [LINK]}
    found = picture(deployments=[moved], links=links, profiles=[profile("studio-1"), profile("studio-2")])
    with paper() as (page, text):
        cables.show(found, page)
    first = text.getvalue().splitlines()[1]
    assert first.startswith(LINK) and "default/chat-0 (left it)" in first and "plug it in" in first
    (shown_as,) = cables.as_values(found)
    assert (shown_as["connected"], shown_as["neededBy"], shown_as["leftBy"]) == (False, [], ["default/chat-0"])


def test_the_drawing_has_each_cable_at_both_ends() -> None:
    with paper() as (page, text):
        topology.show(picture(), page)
    said = text.getvalue()
    assert said.count("══ 80G 38.4/37.9 Gb/s ══") == 2
    assert "└─ tb1 ══" in said and "tb1 studio-2  default/chat-0" in said and "default/chat-0 rank 1: Serving" in said
    with paper() as (page, text):
        topology.show(picture(links=[link("False", "plug it in")]), page)
    assert text.getvalue().count("─╳─") == 2


def test_the_picture_is_well_formed_whatever_names_say() -> None:
    many = [node(f"studio-{number}") for number in range(1, 40)]
    drawn = topology.topology(picture(nodes=many, links=[link("False", HOSTILE)]))
    root = ElementTree.fromstring(svg(drawn))
    rectangles = root.findall(".//{http://www.w3.org/2000/svg}g")
    (line,) = root.findall(".//{http://www.w3.org/2000/svg}line")
    assert len(rectangles) == 39 and line.get("stroke-dasharray")
    assert not root.findall(".//{http://www.w3.org/2000/svg}script")


# --- top, events, logs -------------------------------------------------------------------------------------------------------


def test_top_adds_up_what_groups_reserve() -> None:
    usage = [{"metadata": {"name": "studio-1"}, "usage": {"cpu": "1200m", "memory": "48Gi"}}]
    first, second = top.as_values(picture(), usage)
    assert (first["cpuCores"], first["memoryBytes"], first["gpuReservedBytes"]) == (1.2, 48 << 30, 40 << 30)
    assert second["cpuCores"] is None
    with paper() as (page, text):
        top.show(picture(), usage, "install metrics-server", page)
    assert "1.20 (5%)" in text.getvalue() and "40Gi (50%)" in text.getvalue() and "install metrics-server" in text.getvalue()


def event(kind: str, name: str, time: str, namespace: str = "default") -> Json:
    about = {"kind": kind, "name": name, **({"namespace": namespace} if kind in ("Pod", "ModelDeployment") else {})}
    found = {"metadata": {"name": f"{name}.{time}"}, "involvedObject": about, "lastTimestamp": time, "reason": kind}
    return {**found, "type": "Normal", "message": name}


def test_events_of_a_deployment_are_those_of_all_that_it_uses() -> None:
    happened = [
        event("Node", "studio-2", "2026-03-01T11:59:03Z"),
        event("ThunderboltLink", LINK, "2026-03-01T11:59:01Z"),
        event("Pod", "chat-0-0-1", "2026-03-01T11:59:02Z"),
        event("Pod", "chat-0-0-1", "2026-03-01T11:59:02Z", "other"),
        event("Pod", "chatter-0-0-1", "2026-03-01T11:59:02Z"),
        event("Node", "studio-9", "2026-03-01T11:59:03Z"),
    ]
    found = events.as_values(events.chosen(picture(events=happened), deployment()))
    assert [one["object"] for one in found] == [f"thunderboltlink/{LINK}".lower(), "pod/chat-0-0-1", "node/studio-2"]
    assert len(events.chosen(picture(events=happened), None)) == len(happened)


def test_logs_are_one_by_time_and_the_cause_stands_where_it_happened() -> None:
    texts = {
        "rank 0": "2026-03-01T11:58:00.1Z one\n2026-03-01T11:59:30.1Z three",
        "rank 1": "2026-03-01T11:58:30.1Z two\n  of several lines\n2026-03-01T12:00:00.1Z four",
    }
    found = list(logs.merged(texts, logs.causes(deployment(failure=FAILURE))))
    assert [line.text for line in found] == [
        "one",
        "two",
        "  of several lines",
        "first cause: PeerLost: rank 1 ended",
        "three",
        "four",
    ]
    assert found[3].label == ">>> group 0 rank 1 studio-2"
    (first, second) = logs.sources([pod(1), pod(0), pod(2, {"waiting": {}})])
    assert first.label == "group 0 rank 0 studio-1" and second.path.endswith("/pods/chat-0-1-1/log")


def test_no_log_takes_the_place_of_another() -> None:
    former, present, other = pod(1), pod(1), pod(0)
    former["metadata"]["name"] = "chat-0-0-1"
    both = {"name": "side", "state": {"running": {}}}
    other["status"]["containerStatuses"] = [*other["status"]["containerStatuses"], both]
    found = logs.sources([present, former, other, pod(2)])
    labels = [source.label for source in found]
    assert len(set(labels)) == len(found) == 5
    assert "group 0 rank 1 studio-2 default/chat-0-0-1/runner" in labels, "an earlier pod that still ends"
    assert "group 0 rank 0 studio-1 default/chat-0-1-0/side" in labels


def test_json_in_a_log_is_shown_as_text_with_its_traceback_and_kept_as_values() -> None:
    entry = {
        "time": "x",
        "level": "error",
        "program": "runner",
        "message": "it fails",
        "rank": 0,
        "attempt": 2,
        "error": "a\nb: c",
    }
    found = list(logs.lines("rank 0", f"2026-03-01T11:58:00.1Z {json.dumps(entry)}"))
    assert [line.text for line in found] == ["ERROR it fails attempt=2", "a", "b: c"]
    named = {"time": "2026-03-01T11:58:00.1Z", "source": "rank 0", "cause": False}
    assert logs.as_values(found[0]) == {**entry, **named}
    assert [line.rest for line in found] == [False, True, True]


# --- reading -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [
        ("links", 403, "`kubectl auth can-i list thunderboltlinks.thunderfleet.io -A`"),
        ("pods", 403, "`kubectl auth can-i list pods -n team`"),
        ("profiles", 404, "install the chart"),
        ("usage", 404, "install metrics-server"),
        ("usage", 503, "metrics-server does not answer"),
        ("nodes", 500, "cannot list nodes"),
    ],
)
def test_what_is_missing_is_named(kind: str, code: int, text: str) -> None:
    assert text in why_unread(kind, "team", ApiError(code, "Reason", "message"))


class Server(BaseHTTPRequestHandler):
    """An API server that lets its user see ModelDeployments, pods and their logs only."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path.endswith("/modeldeployments"):
            self.say(200, {"items": [deployment("False", "BackingOff", "", FAILURE)]})
        elif path.endswith("namespaces/default/pods"):
            self.say(200, {"items": [pod(0), pod(1)]})
        elif path.endswith("/log"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"2026-03-01T11:58:00.1Z it starts\n2026-03-01T11:59:30.1Z it ends\n")
        else:
            self.say(403, {"kind": "Status", "reason": "Forbidden", "message": "forbidden"})

    def say(self, code: int, body: Json) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def served(handler: type[Server], folder: Path) -> Iterator[str]:
    """A kubeconfig for an API server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    content = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    yield str(path)
    server.shutdown()
    server.server_close()


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[str]:
    with served(Server, tmp_path) as found:
        yield found


def test_a_tenant_sees_what_is_theirs_and_which_rights_are_missing(kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--kubeconfig", kubeconfig]) == 0
    said = capsys.readouterr().out
    assert "nobody/tiny" in said and "not shown: you are not allowed to list nodes in the cluster" in said
    assert main(["why", "chat", "--kubeconfig", kubeconfig, "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["cause"]["text"] == "PeerLost: rank 1 ended"
    for command in (["topology"], ["cables"], ["events"], ["events", "chat"], ["top"], ["topology", "-o", "svg"]):
        assert main([*command, "--kubeconfig", kubeconfig]) == 0, command
    assert "kubectl auth can-i list nodes.metrics.k8s.io" in capsys.readouterr().out


def test_plan_names_the_rights_that_are_missing(kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "chat", "--kubeconfig", kubeconfig]) == 1
    said = capsys.readouterr().err
    assert "cannot plan" in said and "kubectl auth can-i list modelcaches.thunderfleet.io -A" in said
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--kubeconfig", kubeconfig])
    assert ended.value.code == 2 and "DEPLOYMENT" in capsys.readouterr().err


def test_logs_as_values(kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "chat", "--kubeconfig", kubeconfig, "-o", "json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"message": "it starts", "cause": False}.items() <= found[0].items()
    assert [one["cause"] for one in found] == [False, False, True, False, False]


def test_logs_through_the_api_server(kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "chat", "--kubeconfig", kubeconfig, "--follow"]) == 0
    said = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.endswith("it starts") for line in said[:2]] == [True, True]
    assert ">>> group 0 rank 1 studio-2" in said[2] and said[3].endswith("it ends")
    assert len(said) == 5 + 4, "each line is shown again while the logs are followed from their end"


def test_a_name_that_does_not_exist(kubeconfig: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", "nothing", "--kubeconfig", kubeconfig]) == 2
    assert "there is no ModelDeployment nothing in namespace default; there: chat" in capsys.readouterr().err


# --- colors ------------------------------------------------------------------------------------------------------------------


class Everything(Server):
    """An API server whose user may see everything: a model that does not serve, a pulled cable, logs and events."""

    def do_GET(self) -> None:
        warning = {**event("ModelDeployment", "chat", "2026-03-01T11:59:00Z"), "type": "Warning"}
        broken = deployment("False", "BackingOff", "", FAILURE)
        found = picture(deployments=[broken], links=[link("False", "plug it in")], events=[warning])
        lists = {
            "nodes": found.nodes, "nodeprofiles": found.profiles, "thunderboltlinks": found.links,
            "modeldeployments": found.deployments, "pods": found.pods, "events": found.events,
        }  # fmt: skip
        name = urlsplit(self.path).path.rpartition("/")[2]
        if "metrics.k8s.io" not in self.path and name in lists:
            self.say(200, {"items": list(lists[name])})
        elif name == "log":
            super().do_GET()
        else:
            self.say(403, {"kind": "Status", "reason": "Forbidden", "message": "forbidden"})


@pytest.fixture
def everything(tmp_path: Path) -> Iterator[str]:
    with served(Everything, tmp_path) as found:
        yield found


def shown_on_a_terminal(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command writes to a terminal."""
    master, slave = pty.openpty()
    parts: list[bytes] = []

    def read() -> None:
        # EIO: nobody has the terminal open any more.
        with suppress(OSError):
            while part := os.read(master, 65536):
                parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with monkeypatch.context() as patch, os.fdopen(slave, "w") as terminal:
        patch.setattr("sys.stdout", terminal)
        main(arguments)
    reader.join()
    os.close(master)
    return b"".join(parts).decode().replace("\r\n", "\n")


def terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable but that of the terminal says something about colors."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)


def uncolored(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


RED = "\x1b[31m"
# The part that must be red.
COLORED = {
    "status": "0/1",
    "topology": "─╳─",
    "why chat": "problem",
    "cables": LINK,
    "events": "Warning",
    "logs chat": "first cause: PeerLost: rank 1 ended",
}


@pytest.mark.parametrize("command", [*COLORED, "top"])
def test_a_terminal_gets_colors_and_a_pipe_the_same_text_without(
    everything: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal_alone(monkeypatch)
    arguments = [*command.split(), "--kubeconfig", everything]
    main(arguments)
    piped = capsys.readouterr().out
    terminal = shown_on_a_terminal(arguments, monkeypatch)
    assert piped and "\x1b" not in piped
    ages = r"\b\d+[smhd]\b"
    assert re.sub(ages, "", uncolored(terminal)) == re.sub(ages, "", piped)
    assert "\x1b[" in terminal
    if command in COLORED:
        assert f"{RED}{COLORED[command]}" in terminal
    monkeypatch.setenv("NO_COLOR", "1")
    assert RED not in shown_on_a_terminal(arguments, monkeypatch)


@pytest.mark.parametrize("command", ["status", "topology", "why chat", "cables", "events", "logs chat", "top"])
def test_values_have_no_colors_on_a_terminal(everything: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = shown_on_a_terminal([*command.split(), "--kubeconfig", everything, "-o", "json"], monkeypatch)
    assert terminal.startswith(("{", "[")) and "\x1b" not in terminal


class Counted(Everything):
    """The same API server, which counts requests for lists, and has 1,000 of each object."""

    lists: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        limit = int(parse_qs(url.query).get("limit", ["0"])[0])
        if limit:
            self.lists[url.path] += 1
        more = limit and self.lists[url.path] * limit < 1000
        self.say(200, {"metadata": {"continue": "more" if more else ""}, "items": []})


def test_a_fleet_of_a_thousand_macs_is_read_in_one_page_of_each_kind(tmp_path: Path) -> None:
    """The API server reads further pages from etcd."""
    Counted.lists.clear()
    with served(Counted, tmp_path) as kubeconfig:
        assert main(["status", "--kubeconfig", kubeconfig]) == 0
    found = {path.rpartition("/")[2]: count for path, count in Counted.lists.items() if "leases" not in path}
    assert found.items() >= dict.fromkeys(("nodes", "nodeprofiles", "thunderboltlinks", "modeldeployments"), 1).items()


class Unprofiled(Server):
    """An API server with a Mac that no agent has reported, and nothing else."""

    def do_GET(self) -> None:
        self.say(200, {"items": [node("studio-1")] if self.path.partition("?")[0].endswith("/nodes") else []})


PLACED = """\
default/chat: nobody/tiny

group 0: single Mac, None
  ranks:
group 1: no placement (x)
  Macs: group 2: no placement (
"""


def test_a_plan_is_colored_on_a_terminal_and_plain_in_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal_alone(monkeypatch)
    file = tmp_path / "chat.yaml"
    spec = {"model": {"repository": "nobody/tiny"}}
    kind = {"apiVersion": "thunderfleet.io/v1alpha1", "kind": "ModelDeployment"}
    file.write_text(yaml.safe_dump({**kind, "metadata": {"name": "chat", "namespace": "default"}, "spec": spec}))
    with served(Unprofiled, tmp_path) as kubeconfig:
        arguments = ["plan", "-f", str(file), "--kubeconfig", kubeconfig]
        assert main(arguments) == 3
        piped = capsys.readouterr().out
        terminal = shown_on_a_terminal(arguments, monkeypatch)
        assert "\x1b" not in shown_on_a_terminal([*arguments, "-o", "json"], monkeypatch)
    line = next(line for line in piped.splitlines() if line.startswith("group 0: no placement ("))
    assert "\x1b" not in piped and uncolored(terminal) == piped
    assert f"{RED}{line}\x1b[0m\n" in terminal


def test_groups_of_a_plan_with_and_without_a_placement_have_different_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: object) -> tuple[dict[str, list[Json]], dict[str, str]]:
        return {kind: [] for kind in planning.NEEDED}, {}

    terminal_alone(monkeypatch)
    monkeypatch.setattr(planning, "connect", lambda *_: SimpleNamespace(namespace="ns"))
    monkeypatch.setattr(planning, "read_lists", read)
    monkeypatch.setattr(planning, "_run", lambda _: (3, PLACED))
    terminal = shown_on_a_terminal(["plan", "-f", "chat.yaml"], monkeypatch)
    assert uncolored(terminal) == PLACED
    assert terminal.count("\x1b[") == 4
    assert "\x1b[32mgroup 0: single Mac, None\x1b[0m\n" in terminal and f"{RED}group 1: no placement (x)\x1b[0m\n" in terminal


class Watched(Everything):
    """The same API server, where nothing changes."""

    def do_GET(self) -> None:
        if "watch=true" in self.path:
            self.send_response(200)
            self.end_headers()
            # Until the client closes the connection.
            self.connection.recv(1)
        else:
            super().do_GET()

    def say(self, code: int, body: Json) -> None:
        super().say(code, {"metadata": {"resourceVersion": "1"}, **body})


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[str]:
    with served(Watched, tmp_path) as found:
        yield found


@pytest.mark.parametrize("color", [True, False])
def test_the_hint_of_the_page_is_dim_on_a_terminal_and_its_address_is_plain(
    watched: str, color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal_alone(monkeypatch)
    if not color:
        monkeypatch.setenv("NO_COLOR", "1")
    master, slave = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-m", "thunderfleet_cli", "ui", "--kubeconfig", watched],
        stdin=slave, stdout=slave, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(slave)
    said = b""
    while said.count(b"\n") < 2:
        said += os.read(master, 65536)
    program.send_signal(signal.SIGINT)
    assert program.communicate(timeout=60)[1].endswith(b"thunderfleet: interrupted\n")
    os.close(master)
    address, hint = said.decode().replace("\r\n", "\n").splitlines()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#[\w-]+", address)
    text = "open it within 10 minutes; it works once. Enter prints another address, Ctrl-C ends the page"
    assert hint == f"\x1b[2m{text}\x1b[0m"


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGHUP])
def test_open_streams_do_not_keep_the_page_from_its_end(watched: str, name: signal.Signals) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "thunderfleet_cli", "ui", "--kubeconfig", watched],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # As a job in the background of a script.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert program.stdout is not None
    origin, _, token = program.stdout.readline().strip().partition("/#")
    body = json.dumps({"token": token}).encode()
    with ExitStack() as streams:
        with urlopen(Request(f"{origin}/session", body, {"Content-Type": "application/json"}), timeout=60) as answer:
            session = json.load(answer)["session"]
        for _ in range(3):
            feed = Request(f"{origin}/api/feed", headers={"Authorization": f"Bearer {session}"})
            assert b'"put"' in streams.enter_context(urlopen(feed, timeout=60)).readline()
        program.send_signal(name)
        assert program.communicate(timeout=60) == ("", "thunderfleet: interrupted\n")
    assert program.returncode == 130


def test_a_pipe_gets_the_address_of_the_page_alone(watched: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "thunderfleet_cli", "ui", "--kubeconfig", watched],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TERM": "xterm-256color"},
    )  # fmt: skip
    assert program.stdout is not None
    address = program.stdout.readline()
    program.send_signal(signal.SIGTERM)
    rest, complaint = program.communicate(timeout=60)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#[\w-]+\n", address)
    assert (program.returncode, rest, complaint) == (130, "", "thunderfleet: interrupted\n")


def test_a_command_leaves_the_collector_as_it_was(everything: str) -> None:
    assert gc.isenabled()
    main(["status", "--kubeconfig", everything])
    assert gc.isenabled()
    gc.disable()
    try:
        main(["status", "--kubeconfig", everything])
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_objects_of_a_cluster_are_not_written_out_for_asyncio() -> None:
    """For a task's result it makes the whole text and then cuts it: half a second for a thousand Macs."""
    assert "studio" not in repr(picture()) and len(repr(picture())) < 200


def test_a_reader_who_has_seen_enough_gets_no_traceback(everything: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "thunderfleet_cli", "topology", "--kubeconfig", everything],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout is not None and program.stderr is not None
    program.stdout.close()
    with program.stderr:
        said = program.stderr.read()
    assert (program.wait(timeout=60), said) == (1, b"")


def test_control_characters_reach_no_terminal() -> None:
    with paper() as (page, text):
        page.line("a\x07b\x08c\rd")
    assert text.getvalue() == "abcd\n"


def test_ages_are_those_of_kubectl() -> None:
    assert [facts.ago(f"2026-03-01T{time}Z", NOW) for time in ("11:59:30", "11:00:00", "06:00:00")] == ["30s", "60m", "6h"]
    assert facts.ago("2026-02-01T12:00:00Z", NOW) == "28d" and facts.ago(None, NOW) == ""


def test_the_number_of_groups_is_that_of_autoscaling() -> None:
    autoscaled: dict[str, Json] = {"spec": {"replicas": 1, "autoscaling": {}}, "status": {"autoscaling": {"replicas": 3}}}
    assert facts.replicas(autoscaled) == 3
    assert facts.replicas({"spec": {**autoscaled["spec"], "suspend": True}, "status": autoscaled["status"]}) == 0
    assert facts.replicas({"spec": {"replicas": 2}, "status": autoscaled["status"]}) == 2
    assert facts.replicas({"spec": {"autoscaling": {}}}) == 1


async def test_a_page_of_the_demo_ends_with_its_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui, "CLUSTER_SECONDS", 0.01)
    folder = ClusterFolder(tmp_path)
    with folder.lock.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ends = asyncio.create_task(ui._end_of(folder))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await asyncio.shield(ends)
    async with asyncio.timeout(60):
        await ends


@pytest.mark.parametrize("name", ["qwen", "cluster"])
def test_a_plan_gets_the_fleet_and_the_model_whatever_its_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    lists: dict[str, list[Json]] = {kind: [] for kind in (*planning.NEEDED, *planning.HELPFUL)}
    lists |= {"nodes": [node("studio-1")], "deployments": [{"metadata": {"name": name, "namespace": "ns"}}]}
    found: dict[str, Json] = {}

    async def read(*_: object) -> tuple[dict[str, list[Json]], dict[str, str]]:
        return lists, {}

    def run(command: list[str]) -> tuple[int, str]:
        for option in ("--fleet", "--deployment"):
            found[option] = json.loads(Path(command[command.index(option) + 1]).read_text())
        return 0, ""

    monkeypatch.setattr(planning, "connect", lambda *_: SimpleNamespace(namespace="ns"))
    monkeypatch.setattr(planning, "read_lists", read)
    monkeypatch.setattr(planning, "_run", run)
    assert main(["plan", name]) == 0
    assert [item["kind"] for item in found["--fleet"]["items"]] == ["Node", "ModelDeployment"]
    assert found["--deployment"]["metadata"]["name"] == name


# --- the control plane -------------------------------------------------------------------------------------------------------


def lease(seconds: float) -> Json:
    """Renewed so many seconds ago."""
    return {"spec": {"renewTime": (NOW - timedelta(seconds=seconds)).isoformat()}}


WORKING = {"kube-scheduler": lease(1), "kube-controller-manager": lease(2), "operator": lease(3)}


@pytest.mark.parametrize("component", WORKING)
def test_a_component_that_no_longer_renews_its_lease_is_named(component: str) -> None:
    broken = deployment("False", "Pending", "pods start")
    waiting = pod(1)
    del waiting["spec"]["nodeName"]
    parts: Json = {"deployments": [broken], "pods": [pod(0), waiting]}
    found = why.why(picture(**parts, leases={**WORKING, component: lease(40)}), broken)
    assert found.cause is not None and found.cause.subject == component
    assert "has not renewed its Lease for 39 s" in found.cause.text or "for 38 s" in found.cause.text
    for leases in (WORKING, {component: lease(40)}, {**WORKING, component: lease(20)}, {**WORKING, component: {}}):
        found = why.why(picture(**parts, leases=leases), broken)
        assert not [step for step in found.steps if "Lease" in step.text]


@pytest.mark.parametrize("component", ["kube-scheduler", "kube-controller-manager"])
def test_a_component_for_which_nothing_waits_is_not_the_cause(component: str) -> None:
    broken = deployment("False", "BackingOff", "restarts", FAILURE)
    found = why.why(picture(deployments=[broken], leases={**WORKING, component: lease(40)}), broken)
    assert found.cause is not None and found.cause.subject.startswith("last failure")
    assert [step.subject for step in found.steps if "Lease" in step.text] == [component]


def test_a_pod_of_the_operator_that_is_not_ready_is_named_and_is_no_cause() -> None:
    unready: Json = {
        "metadata": {"name": "operator-2", "namespace": "system"},
        "spec": {"nodeName": "linux-2"},
        "status": {"conditions": conditions(Ready=("False", "ContainersNotReady", ""))},
    }
    leaving = {**unready, "metadata": {**unready["metadata"], "name": "old", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    for one, cause in ((deployment(), None), (deployment("False", "Loading", "rank 1 loads"), "group 0")):
        found = why.why(picture(deployments=[one], operators=[OPERATOR, unready, leaving]), one)
        steps = [step for step in found.steps if "is not ready; another replica works" in step.text]
        assert len(steps) == 1 and steps[0].text.startswith("Pod operator-2 on linux-2 ")
        assert (found.cause.subject if found.cause else None) == cause
    for operators, said in (([OPERATOR, unready], "Pod operator-2"), ([unready], "no pod"), ([], "no pod"), ([OPERATOR], None)):
        values = status.as_values(picture(operators=operators))["controlPlane"]
        assert [one["problem"].startswith(said) for one in values] == ([True] if said else [])
    unread = picture(operators=[], unread={"operators": "you are not allowed to list pods"})
    assert status.as_values(unread)["controlPlane"] == []


def test_a_control_plane_that_is_alone_says_itself_what_does_not_work() -> None:
    plane = node("studio-1")
    text = "kube-scheduler on this Mac does not answer: see the log"
    plane["status"]["conditions"] += conditions(ControlPlaneReady=("False", "ComponentDown", text))
    broken = deployment("False", "Pending", "pods start")
    waiting = pod(1)
    del waiting["spec"]["nodeName"]
    parts: Json = {"nodes": [plane, node("studio-2")], "leases": {"operator": lease(1)}}
    found = why.why(picture(**parts, deployments=[broken], pods=[pod(0), waiting]), broken)
    assert found.cause is not None and (found.cause.subject, found.cause.text) == ("control plane on studio-1", text)
    broken = deployment("False", "BackingOff", "restarts", FAILURE)
    found = why.why(picture(**parts, deployments=[broken]), broken)
    assert found.cause is not None and found.cause.subject.startswith("last failure")
    assert status.as_values(picture(**parts))["controlPlane"] == [{"name": "control plane on studio-1", "problem": text}]


def skewed() -> Json:
    """The NodeProfile of a Mac with a wrong clock."""
    found = profile("studio-2", (LINK,))
    wrong = ("False", "ClockWrong", "the clock of this Mac is 3,600 s ahead of the API server's: run `sudo sntp`")
    found["status"]["conditions"] += conditions(ClockSynchronized=wrong)
    return found


def test_a_wrong_clock_is_named_and_is_the_cause_of_nothing_else() -> None:
    profiles = [profile("studio-1", (LINK,)), skewed()]
    assert status.as_values(picture(profiles=profiles))["macs"][1]["problem"].startswith(
        "ClockWrong: the clock of this Mac is 3,600 s"
    )
    for one, cause in (
        (deployment(), None),
        (deployment("False", "Loading", "rank 1 loads"), "group 0"),
        (deployment("False", "BackingOff", "restarts", FAILURE), "last failure"),
    ):
        found = why.why(picture(deployments=[one], profiles=profiles), one)
        steps = [step for step in found.steps if "ClockWrong" in step.text]
        assert [(step.subject, step.state) for step in steps] == [("Node studio-2", why.State.PROBLEM)]
        assert (found.cause and found.cause.subject.startswith(cause or "?")) is (None if cause is None else True)


def test_status_names_a_component_that_does_not_work() -> None:
    found = picture(leases={**WORKING, "kube-scheduler": lease(40)})
    assert [one["name"] for one in status.as_values(found)["controlPlane"]] == ["kube-scheduler"]
    for leases, named in ((found.leases, True), (WORKING, False)):
        with paper() as (page, text):
            status.show(picture(leases=leases), page, NOW)
        assert ("kube-scheduler  has not renewed its Lease" in text.getvalue()) is named


def noted(seconds: float, clock: float = 0.0, holder: str = "") -> Json:
    """The same, as the API server notes it, by a holder whose clock is ``clock`` seconds ahead."""
    then = NOW - timedelta(seconds=seconds)
    field: Json = {"f:spec": {"f:renewTime": {}}}
    spec = {"renewTime": (then + timedelta(seconds=clock)).isoformat(), "holderIdentity": holder}
    return {"metadata": {"managedFields": [{"time": then.isoformat(), "fieldsV1": field}]}, "spec": spec}


def kubelets(silent: float = 4) -> Json:
    """Leases of the Nodes; that of studio-2 was renewed ``silent`` seconds ago."""
    return {"studio-1": noted(9), "studio-2": noted(silent), "box": noted(1)}


def agent(node: str = "studio-2", ready: str = "False", **container: Any) -> Json:
    return {
        "metadata": {"name": f"agent-{node}", "namespace": "system"},
        "spec": {"nodeName": node},
        "status": {"conditions": conditions(Ready=(ready, "", "")), "containerStatuses": [{"name": "agent", **container}]},
    }


def lines(found: Picture) -> str:
    """What ``status`` prints."""
    with paper() as (page, text):
        status.show(found, page, NOW)
    return text.getvalue()


HEALTHY: Json = {
    "leases": {**WORKING, "operator": noted(3, holder="operator_1")},
    "kubelets": kubelets(),
    "agents": [agent(ready="True", started=True), agent(started=False)],
    "now": NOW,
}
"""What programs that work show; a second agent starts."""


def test_nothing_is_said_of_programs_that_work() -> None:
    serving = deployment()
    assert lines(picture(**HEALTHY)) == lines(picture())
    assert status.as_values(picture(**HEALTHY)) == status.as_values(picture())
    assert why.why(picture(**HEALTHY), serving) == why.why(picture(), serving)
    loading = deployment("False", "Loading", "rank 1 loads")
    parts: Json = {"deployments": [loading]}
    assert why.why(picture(**parts, **HEALTHY), loading) == why.why(picture(**parts), loading)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"kubelets": kubelets(40)}, "the kubelet has not renewed its Lease for 39 s: check that the Mac is on"),
        ({"agents": [agent(started=True)]}, "the agent does not work (Pod agent-studio-2): `kubectl describe pod -n system "),
        ({"agents": [agent(restartCount=4)]}, "the agent does not work (Pod agent-studio-2)"),
    ],
)
def test_a_mac_whose_kubelet_or_agent_is_silent_is_named_before_its_node_is_not_ready(parts: Json, said: str) -> None:
    shown = picture(**{**HEALTHY, **parts})
    problems = {one["name"]: one["problem"] for one in status.as_values(shown)["macs"]}
    assert problems["studio-1"] == "" and problems["studio-2"].startswith(said)
    assert said in lines(shown)
    drawn = {mac.name: mac.problem for mac in topology.topology(shown).macs}
    assert drawn == problems
    steps = why.why(shown, deployment())
    assert steps.cause is None, "it serves"
    assert [step.subject for step in steps.steps if step.text.startswith(said)] == ["Node studio-2"]
    loading = deployment("False", "Loading", "rank 1 loads")
    cause = why.why(picture(**{**HEALTHY, **parts}, deployments=[loading]), loading).cause
    # A group loads without an agent.
    expected = "Node studio-2" if said.startswith("the kubelet") else "group 0"
    assert cause is not None and cause.subject == expected
    assert expected == "group 0" or cause.text.startswith(said)


def test_an_api_server_that_nobody_reaches_is_the_cause_of_all_that_look_silent() -> None:
    lost = {one: noted(44) for one in ("studio-1", "studio-2", "box")}
    gone = [node(name, "Unknown", "Kubelet stopped posting node status.") for name in ("studio-1", "studio-2")]
    ended = {"metadata": {"name": "operator"}, "status": {"conditions": conditions(Ready=("False", "", ""))}}
    loading = deployment("False", "Loading", "rank 1 loads")
    parts: Json = {**HEALTHY, "kubelets": lost, "leases": {"operator": noted(46)}, "nodes": gone, "operators": [ended]}
    shown = picture(**parts, deployments=[loading])
    cause = why.why(shown, loading).cause
    assert cause is not None and cause.subject == "way to the API server"
    assert "has renewed its Lease for 44 s" in cause.text and "way to the API server" in lines(shown)
    for works in ({"kubelets": {**lost, "box": noted(20)}}, {"leases": {"operator": noted(3)}}, {"now": None}):
        found = picture(**{**parts, **works}, deployments=[loading])
        assert "way to the API server" not in lines(found)
        cause = why.why(found, loading).cause
        assert cause is not None and cause.subject != "way to the API server"


def test_a_kubelet_without_descriptors_is_named() -> None:
    starved = node("studio-2")
    starved["status"]["conditions"] += conditions(DescriptorsExhausted=("True", "KubeletHasFewDescriptors", "restart it"))
    loading = deployment("False", "Loading", "rank 1 loads")
    shown = picture(**HEALTHY, nodes=[node("studio-1"), starved], deployments=[loading])
    said = "KubeletHasFewDescriptors: restart it"
    assert [one["problem"] for one in status.as_values(shown)["macs"]] == ["", said]
    cause = why.why(shown, loading).cause
    assert cause is not None and (cause.subject, cause.text) == ("Node studio-2", said)
    (one,) = (one for one in starved["status"]["conditions"] if one["type"] == "DescriptorsExhausted")
    assert of_condition(one) is Health.BAD and of_condition({**one, "status": "False"}) is Health.GOOD


def test_a_node_that_is_not_ready_says_more_than_its_lease_and_a_cordoned_one_less() -> None:
    silent: Json = {**HEALTHY, "kubelets": kubelets(60)}
    lost = picture(**silent, nodes=[node("studio-1"), node("studio-2", "Unknown", "Kubelet stopped posting node status.")])
    assert status.as_values(lost)["macs"][1]["problem"].startswith("NotReady: ")
    cordoned = node("studio-2")
    cordoned["spec"] = {"unschedulable": True}
    for parts, said in ((HEALTHY, "cordoned"), (silent, "the kubelet has not renewed")):
        found = picture(**parts, nodes=[node("studio-1"), cordoned])
        assert status.as_values(found)["macs"][1]["problem"].startswith(said)


def test_the_kubelet_of_the_operators_machine_is_named_and_no_other_that_is_no_mac() -> None:
    silent = {**kubelets(), "box": noted(40)}
    placed: Json = {**OPERATOR, "spec": {"nodeName": "box"}}
    for operators, named in (([placed], ["Node box"]), ([OPERATOR], [])):
        values = status.as_values(picture(**{**HEALTHY, "kubelets": silent}, operators=operators))
        assert [one["name"] for one in values["controlPlane"]] == named


def test_the_clock_of_the_operator_is_named_with_its_machine_and_explains_nothing() -> None:
    leases = {**WORKING, "operator": noted(3, clock=-3600, holder="operator_1a")}
    placed: Json = {**OPERATOR, "spec": {"nodeName": "studio-2"}}
    for one, cause in ((deployment(), None), (deployment("False", "Loading", "rank 1 loads"), "group 0")):
        shown = picture(**{**HEALTHY, "leases": leases}, operators=[placed], deployments=[one])
        (problem,) = status.as_values(shown)["controlPlane"]
        assert problem["name"] == "clock of the operator"
        assert problem["problem"].startswith("the clock of Pod operator on studio-2 is 3,600 s behind the API server's: set ")
        found = why.why(shown, one)
        assert (found.cause.subject if found.cause else None) == cause


@pytest.mark.parametrize(("ago", "named"), [(12, True), (61, False)])
def test_an_operator_that_ended_a_moment_ago_is_named(ago: float, named: bool) -> None:
    ended = {"terminated": {"finishedAt": (NOW - timedelta(seconds=ago)).isoformat(), "exitCode": 137}}
    back: Json = {
        "metadata": {"name": "operator", "namespace": "system"},
        "spec": {"nodeName": "box"},
        "status": {**OPERATOR["status"], "containerStatuses": [{"restartCount": 1, "lastState": ended}]},
    }
    values = status.as_values(picture(**HEALTHY, operators=[back]))["controlPlane"]
    text = (
        "Pod operator on box ended 12 s ago (exit code 137) and was started again; `kubectl describe pod -n system operator` "
    )
    assert [one["problem"].startswith(text) for one in values] == ([True] if named else [])
    found = why.why(picture(**HEALTHY, operators=[back]), deployment())
    assert [step.state for step in found.steps if "ended" in step.text] == ([why.State.NOTE] if named else [])
    unknown = picture(**{**HEALTHY, "now": None}, operators=[back])
    assert status.as_values(unknown)["controlPlane"] == []


@pytest.mark.parametrize("part", ["API server", "etcd"])
def test_a_slow_part_of_the_control_plane_is_named_and_explains_nothing(part: str) -> None:
    loading = deployment("False", "Loading", "rank 1 loads")
    shown = picture(**HEALTHY, slow={part: 2.34}, deployments=[loading])
    (problem,) = status.as_values(shown)["controlPlane"]
    assert problem["problem"].startswith(f"the {part} answers slowly: a small request took 2.3 s: check ")
    found = why.why(shown, loading)
    assert found.cause is not None and found.cause.subject == "group 0"
    assert [step.subject for step in found.steps if "slowly" in step.text] == [part]


def ending(rank: int, seconds: float) -> Json:
    """A pod that may take until ``seconds`` ago to end."""
    found = pod(rank)
    found["metadata"]["deletionTimestamp"] = (NOW - timedelta(seconds=seconds)).isoformat()
    return found


def test_what_is_left_of_a_deleted_deployment_is_named_with_its_mac() -> None:
    gone: Json = {**HEALTHY, "deployments": [], "kubelets": kubelets(40)}
    found = picture(**gone, pods=[ending(1, -20)])
    assert why.left(found, "chat") == why.left(found, "default/chat")
    assert why.left(found, "chat").startswith(
        "deleted, but not ended: Pod chat-0-1-1 on studio-2; studio-2: the kubelet has not renewed its Lease for 39 s"
    )
    assert why.left(found, "other") == "" and why.left(picture(**HEALTHY), "chat") == ""
    assert status.as_values(found)["controlPlane"] == [], "it may take longer"
    late = picture(**gone, pods=[ending(0, -20), ending(1, 20)])
    (problem,) = status.as_values(late)["controlPlane"]
    assert problem["name"] == "ModelDeployment default/chat"
    assert problem["problem"].startswith("deleted, but not ended: Pod chat-0-1-1 on studio-2; ")


class ControlPlane(Server):
    """An API server without etcd, or (``etcd``) one that fails for another reason; ``away``: it closes every connection."""

    etcd = False
    away = False

    def do_GET(self) -> None:
        if self.away:
            self.close_connection = True
        elif self.path == "/livez":
            self.send_response(200 if self.etcd else 500)
            self.end_headers()
            self.wfile.write(
                b"ok" if self.etcd else b"[+]ping ok\n[+]log ok\n[-]etcd failed: reason withheld\nlivez check failed"
            )
        else:
            self.say(500, {"kind": "Status", "reason": "InternalError", "message": "something failed"})


@pytest.mark.parametrize(
    ("etcd", "away", "said"),
    [
        (False, False, "etcd does not answer the API server"),
        (True, False, "cannot list nodes: something failed"),
        (False, True, "the API server http://127.0.0.1"),
    ],
)
def test_the_part_of_the_control_plane_that_does_not_answer_is_named(
    kubeconfig: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    etcd: bool,
    away: bool,
    said: str,
) -> None:
    for name, value in {"do_GET": ControlPlane.do_GET, "etcd": etcd, "away": away}.items():
        monkeypatch.setattr(Server, name, value, raising=False)
    for command in (["why", "chat"], ["status"]):
        assert main([*command, "--kubeconfig", kubeconfig]) == 1
        text = capsys.readouterr().err
        assert said in text and ("etcd does not" in text) == (not etcd and not away)


class Silent(Server):
    """An API server whose lists come once its health was asked ``wanted`` times (None: never).

    ``answers``: the bodies of ``/livez``, the last one for all later requests; "": it closes the connection.
    """

    wanted: int | None = None
    answers: tuple[str, ...] = ("ok",)
    asked = 0
    there = threading.Event()

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/livez":
            said = self.answers[min(Silent.asked, len(self.answers) - 1)]
            Silent.asked += 1
            if self.wanted is not None and Silent.asked >= self.wanted:
                self.there.set()
            if said:
                self.send_response(200 if said == "ok" else 500)
                self.end_headers()
                self.wfile.write(said.encode())
            self.close_connection = True
            return
        self.there.wait()
        # A client that has given up has closed its connections.
        with suppress(OSError):
            if urlsplit(self.path).path.endswith("/modeldeployments"):
                self.say(200, {"items": [deployment()]})
            else:
                self.say(403, {"kind": "Status", "reason": "Forbidden", "message": "forbidden"})


WITHOUT_ETCD = "[+]ping ok\n[-]etcd failed: reason withheld\nlivez check failed"


@pytest.mark.parametrize(
    ("wanted", "answers", "said"),
    [
        (None, (WITHOUT_ETCD,), "etcd does not answer the API server"),
        (None, ("",), "the API server http://127.0.0.1"),
        (None, ("ok", WITHOUT_ETCD, "ok", WITHOUT_ETCD), "etcd does not answer the API server"),
        (4, ("ok",), ""),
        (4, (WITHOUT_ETCD, "ok", WITHOUT_ETCD, "ok"), ""),
    ],
    ids=["etcd", "API server", "etcd after a while", "busy", "now and then"],
)
def test_a_silent_control_plane_is_named_while_lists_hang_and_a_busy_one_is_waited_for(
    kubeconfig: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    wanted: int | None,
    answers: tuple[str, ...],
    said: str,
) -> None:
    there = threading.Event()
    for name, value in {"do_GET": Silent.do_GET, "wanted": wanted, "answers": answers, "there": there}.items():
        monkeypatch.setattr(Server, name, value, raising=False)
    monkeypatch.setattr(Silent, "asked", 0)
    for name in ("PATIENT_SECONDS", "AGAIN_SECONDS"):
        monkeypatch.setattr(f"thunderfleet_cli.view.picture.{name}", 0.01)
    # The lists never come, so only what is asked meanwhile can end the command.
    monkeypatch.setattr("thunderfleet_cli.view.picture.SECONDS", 3600.0)
    try:
        assert main(["why", "chat", "--kubeconfig", kubeconfig]) == (1 if said else 0)
    finally:
        there.set()
    found = capsys.readouterr()
    assert said in found.err and ("the model serves" in found.out) == (not said)

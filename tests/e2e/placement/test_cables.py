"""A group and the state of its cable, with a client that asks all the time: it leaves a cable that is out, and goes back.

Two Macs, one Thunderbolt 5 cable with a recorded JACCL, and a LAN.
"""

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from thunderfleet_localcluster.models import tinymodel

from tests.support.line import Alone, Deploy, Deployment, Line, condition
from tests.support.suite.tiers import quick
from tests.support.waiting import until

Json = dict[str, Any]

LINK = "studio-1.tb1--studio-2.tb1"
END = "studio-1:1"
PROMPT, TOKENS = tinymodel.MESSAGES[0]["content"], 8
SUPERVISOR = "thunderfleet-runner serve"
BACK_SECONDS = 120.0
"""The cable must have worked for half a minute or, after earlier tests, for longer: their interruptions count."""


@pytest.fixture(scope="module")
def line(desk: Line) -> Line:
    return desk


PULLED = ("PortDown", "Flapping")
"""What a link says of a pulled cable. Tests before may have pulled it so often that it counts as flapping."""


class Client:
    """Asks one question after the other, and keeps wrong answers. What fails while the group moves is no answer."""

    def __init__(self, served: Deployment, expected: list[int]) -> None:
        self._served, self._expected = served, expected
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answers = 0
        self.wrong: list[object] = []

    def __enter__(self) -> "Client":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(150)

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                answer = self._served.ask(PROMPT, TOKENS)
            except (OSError, AssertionError, KeyError, IndexError):
                answer = None
            if answer is not None and answer.status == 200:
                self.answers += 1
                found = answer.json["choices"][0]["token_ids"]
                if found != self._expected:
                    self.wrong.append(found)
            # So that the group is idle now and then. Ranks that wait for each other use every processor.
            self._ends.wait(1.0)


def links(served: Deployment) -> set[str]:
    """The cables of the newest plan; an empty name is a hop over the LAN. None if the plan was replaced meanwhile."""
    name = f"{served.name}-0-e{served.group()['epoch']}"
    item = served.line.api.get(f"/api/v1/namespaces/{served.namespace}/configmaps/{name}")
    return set(json.loads(item["data"]["plan.json"]).get("links", [])) if item else set()


def named(seen: list[Json], *reasons: str) -> Json | None:
    """The condition Ready, once it was False with one of these reasons of the link. A group may serve again at once."""
    ready = [condition(item, "Ready") for item in seen]
    return next((one for one in ready if one.get("status") == "False" and one.get("reason") in reasons), None)


def usable(line: Line) -> None:
    """Waits until RDMA works on the cable."""
    until(lambda: condition(line.json("get", "tbl", LINK), "RDMAUsable").get("status") == "True", "the cable can be used")


def rested(line: Line) -> None:
    """The link is usable. A restarted operator takes every cable that works as steady; the one before must have ended."""
    usable(line)
    line.kubectl("rollout", "restart", "deployment/thunderfleet-operator", "-n", "thunderfleet-system")
    line.cluster.kubectl(
        "rollout", "status", "deployment/thunderfleet-operator", "-n", "thunderfleet-system", "--timeout=90s", seconds=100
    )
    operators = ("pods", "-n", "thunderfleet-system", "-l", "app.kubernetes.io/component=operator")
    until(lambda: len(line.items(*operators)) == 1, "the operator before has ended")


@pytest.fixture(scope="class")
def one(line: Line) -> Iterator[Deployment]:
    """The group of ``TestOneGroup``."""
    usable(line)
    served = line.deploy("one")
    yield served
    line.forget(served)


class TestOneGroup:
    """One group over JACCL, to which one thing happens after the other."""

    @pytest.fixture
    def served(self, one: Deployment) -> Deployment:
        return one.until_ready()

    @pytest.mark.soak
    def test_a_frozen_supervisor_of_rank_0_is_restarted(self, line: Line, served: Deployment, alone: Alone) -> None:
        hit = served.ranks()[0]
        done = line.run(hit["node"], "pkill", "-STOP", "-f", SUPERVISOR)
        assert done.returncode == 0, done.stderr

        def restarted() -> bool:
            pod = next(pod for pod in served.children() if pod["metadata"]["name"] == hit["pod"])
            return bool(pod["status"]["containerStatuses"][0]["restartCount"])

        served.until(restarted, "its container was restarted")
        served.until(served.serves, "the group serves")
        assert served.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)

    def test_a_pulled_cable_is_left_and_taken_again(self, line: Line, served: Deployment, alone: Alone) -> None:
        # The first test that interrupts the cable.
        check_a_pulled_cable(line, served, "JACCL", alone(PROMPT, TOKENS))

    @pytest.mark.soak
    def test_a_link_that_somebody_edits_or_deletes_moves_no_group(self, line: Line, served: Deployment, alone: Alone) -> None:
        before = served.group()
        assert links(served) == {LINK}

        def reported() -> bool:
            """Whether the link has what both agents report, and says what that means."""
            found = line.items("tbl")
            return any(
                len(one.get("status", {}).get("endpoints", [])) == 2 and condition(one, "Connected").get("status") == "True"
                for one in found
            )

        def edit(status: Json) -> None:
            patch = json.dumps({"status": status})
            line.kubectl("patch", "tbl", LINK, "--subresource=status", "--type=merge", "-p", patch)

        conditions = line.json("get", "tbl", LINK)["status"]["conditions"]
        wrong = [one | ({"status": "False", "reason": "Unplugged"} if one["type"] == "Connected" else {}) for one in conditions]
        with line.api.watched(served.path) as seen:
            for edited in (wrong, []):
                edit({"conditions": edited})
                until(reported, "the link says what its agents see")
            edit({"endpoints": []})
            # The agents look at their links once a minute.
            without_ends = {"reason": "NoEnd"}.items()
            until(
                lambda: without_ends <= condition(line.json("get", "tbl", LINK), "Symmetric").items() or reported(),
                "the operator has seen it",
            )
            assert served.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)
            uid = line.json("get", "tbl", LINK)["metadata"]["uid"]
            line.kubectl("delete", "tbl", LINK, "--wait=false")
            until(lambda: reported() and line.json("get", "tbl", LINK)["metadata"]["uid"] != uid, "the agents report it again")
            served.until_ready()
        assert named(seen, *PULLED) is None, "no edit counts as a pulled cable"
        now = served.group()
        assert (now["epoch"], now["restarts"], links(served)) == (before["epoch"], before["restarts"], {LINK})
        assert served.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)


@pytest.mark.soak
def test_a_pulled_cable_under_a_ring(line: Line, deploy: Deploy, alone: Alone) -> None:
    rested(line)
    check_a_pulled_cable(line, deploy("pulled", transport="Ring").until_ready(), "Ring", alone(PROMPT, TOKENS))


def check_a_pulled_cable(line: Line, served: Deployment, transport: str, expected: list[int]) -> None:
    """It is named, the group serves over the LAN, and is back on the cable soon after that is plugged in."""
    before = served.group()
    assert links(served) == {LINK} and served.status["transport"] == transport
    with Client(served, expected) as client, line.api.watched(served.path) as seen:
        line.cluster.cable("pull", END)
        try:
            found = served.until(lambda: named(seen, *PULLED), "not Ready, and the cable is named")
            assert LINK in found["message"] and "studio-1" in found["message"] and "studio-2" in found["message"]
            served.until(lambda: served.group()["epoch"] != before["epoch"] and served.is_ready(), "it serves over the LAN")
            group = served.group()
            assert links(served) == {""} and group["restarts"] == before["restarts"]
            assert group["lastFailure"]["link"] == LINK and group["lostPlace"]["links"] == [LINK]
            answered = client.answers
            served.until(lambda: client.answers > answered, "the client gets answers")
            waits = condition(served.get(), "Placed")
            assert waits["reason"] == "FailbackPending" and LINK in waits["message"]
        finally:
            line.cluster.cable("plug", END)
        served.until(lambda: links(served) == {LINK} and served.is_ready(), "it is back on the cable", BACK_SECONDS)
        answered = client.answers
        served.until(lambda: client.answers > answered, "the client gets answers again")
    assert client.wrong == []
    assert served.group()["restarts"] == before["restarts"] and "lostPlace" not in served.group()


@pytest.mark.parametrize("back", quick([False], [False, True]))
def test_a_cable_that_changes_a_bit_is_left_until_it_is_plugged_in_again(
    line: Line, deploy: Deploy, alone: Alone, *, back: bool
) -> None:
    rested(line)
    macs = ("studio-1", "studio-2")
    for mac in macs:
        line.cluster.jaccl(mac, [{"at": "wire", "flipAfterBytes": 150_000}])
    try:
        served = deploy("corrupt", recovery={"backoffSeconds": 1})
        failure = served.until(lambda: served.group().get("lastFailure"), "a failure")
        assert (failure["reason"], failure["link"]) == ("LinkCorrupts", LINK), failure
        one, other = macs if failure["node"] == macs[1] else macs[::-1]
        found = re.search(
            r"data was corrupted on the way from rank \d \((.+?)\) to rank \d \((.+?)\): message of ", failure["message"]
        )
        assert found is not None and found.groups() == (one, other), failure
        served.until(served.is_ready, "it serves over the LAN")
        assert links(served) == {""} and served.group()["restarts"] == 0
        assert served.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)
        assert "every bit right" in served.until_condition("Verified", "True", "Verified")["message"]
        waits = condition(served.get(), "Placed")
        assert waits["reason"] == "FailbackPending" and f"cable {LINK} corrupted data at " in waits["message"]
        assert [avoided["name"] for avoided in served.group()["avoidedLinks"]] == [LINK]
    finally:
        for mac in macs:
            line.cluster.jaccl(mac, [])
        line.cluster.cable("pull", END)
        until(lambda: condition(line.json("get", "tbl", LINK), "Connected").get("status") == "False", "the cable is out")
        line.cluster.cable("plug", END)
    served.until(lambda: "avoidedLinks" not in served.group(), "the cable is not avoided any more")
    # That the group goes back then, a pulled cable shows too.
    served.until(lambda: "counts as steady" in condition(served.get(), "Placed")["message"], "it waits for a steady cable")
    if back:
        served.until(lambda: links(served) == {LINK} and served.is_ready(), "it is back on the cable", BACK_SECONDS)
        assert served.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)


def test_rdma_that_is_switched_off_leaves_the_cable_for_tcp(line: Line, deploy: Deploy, alone: Alone) -> None:
    rested(line)
    served = deploy("switched").until_ready()
    before = served.group()
    assert served.status["transport"] == "JACCL"
    try:
        with line.api.watched(served.path) as seen:
            line.cluster.rdma("off", "studio-2")
            # The other Mac may see first that the port is down.
            reasons = ("RDMADisabled", "PortDown", "NoIPv4Address")
            found = served.until(lambda: named(seen, *reasons), "not Ready, and the cable is named")
        assert LINK in found["message"]
        served.until(lambda: served.group()["epoch"] != before["epoch"] and served.is_ready(), "it serves over TCP")
        assert served.status["transport"] == "Ring" and links(served) == {LINK}
        assert served.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)
        served.until(lambda: "rdma_ctl enable" in condition(served.get(), "Placed")["message"], "what would help")
    finally:
        line.cluster.rdma("on", "studio-2")


def test_with_nowhere_to_go_nothing_starts_until_the_cable_is_back(line: Line, deploy: Deploy, alone: Alone) -> None:
    rested(line)
    served = deploy("stuck", transport="JACCL", parallelism="Tensor").until_ready()
    try:
        with line.api.watched(served.path) as seen:
            line.cluster.cable("pull", END)
            found = served.until(lambda: named(seen, *PULLED), "not Ready, and the cable is named")
            assert LINK in found["message"] and "studio-1" in found["message"] and "studio-2" in found["message"]
        served.until_condition("Placed", "False", says="studio-1 ↔ studio-2")
        served.until(lambda: not [c for c in served.children() if c["kind"] == "Pod"], "no pod is left")
    finally:
        line.cluster.cable("plug", END)
    served.until_ready()
    assert served.group()["restarts"] == 0
    assert served.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)

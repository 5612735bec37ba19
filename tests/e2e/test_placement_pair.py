"""Two Macs with one cable that only one of them sees: a group uses it for RDMA if possible, otherwise for TCP."""

from collections.abc import Iterator

import pytest
from thunderfleet_localcluster.models import tinymodel

from tests.support.line import Alone, Deploy, Line, on_fleet
from tests.support.waiting import until

FLEET = """
machines:
  - {name: linux-1, kind: linux}
  - {name: studio-1, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
  - {name: studio-2, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
cables:
  - {a: "studio-1:1", b: "studio-2:1", seen: a}
"""
# Speeds are those of the fleet file.
VALUES = ("operator.replicas=1", "agent.measure.enabled=false")
LINK = "studio-1.tb1--studio-2.tb1"
PROMPT, TOKENS = tinymodel.DEMO_MESSAGES[0]["content"], 16
SPEC = {"nodes": {"min": 2}, "memory": {"contextTokens": 2048, "cachedTokens": 4096}}


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    with on_fleet(FLEET, "pair", "THUNDERFLEET_E2E_PAIR", *VALUES, ends=1) as found:
        yield found


def said(line: Line, kind: str) -> tuple[str, str]:
    """Status and reason of a condition of the cable."""
    found = line.json("get", "tbl", LINK).get("status", {}).get("conditions", [])
    return next(((c["status"], c["reason"]) for c in found if c["type"] == kind), ("", ""))


@pytest.mark.parametrize("rdma", [True, False])
def test_a_cable_seen_from_one_end_carries_a_group(line: Line, deploy: Deploy, alone: Alone, rdma: bool) -> None:
    line.cluster.rdma("on" if rdma else "off", "studio-2")
    usable = ("True", "Usable") if rdma else ("False", "RDMADisabled")
    until(lambda: said(line, "RDMAUsable") == usable, "the cable says what it is fit for")
    assert said(line, "Symmetric") == ("False", "OneEnd")
    # For a model this small tensor parallelism is not worth it, so Auto would choose a pipeline.
    pair = deploy("pair", **SPEC, **({"parallelism": "Tensor"} if rdma else {})).until_ready()
    group = pair.group()
    assert {rank["node"] for rank in group["ranks"]} == {"studio-1", "studio-2"}
    if rdma:
        assert (group["transport"], group["parallelism"]) == ("JACCL", "Tensor")
        assert [rank["shard"] for rank in group["ranks"]] == ["1/2", "2/2"]
        assert all("jaccl" in item["status"]["runtime"]["backends"] for item in line.items("np"))
    else:
        assert (group["transport"], group["parallelism"]) == ("Ring", "Pipeline")
        assert f"no RDMA over {LINK}: RDMA is disabled on studio-2" in group["reason"]
    assert pair.tokens(PROMPT, TOKENS) == alone(PROMPT, TOKENS)
    status, planned = line.plan(pair.get())
    (offline,) = planned["groups"]
    assert (status, offline["transport"]) == (0, group["transport"])
    assert [rank["node"] for rank in offline["ranks"]] == [rank["node"] for rank in group["ranks"]]

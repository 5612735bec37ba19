"""Random fleets for the tests of recorded Macs; all of them could be built from real machines and cables."""

from typing import Any

import pytest
from hypothesis import strategies as st
from thunderfleet_localcluster.fleet.catalogue import MODELS
from thunderfleet_localcluster.fleet.spec import Fleet


@st.composite
def _fleets(draw: Any) -> Fleet:
    names = draw(st.lists(st.from_regex(r"[a-z][a-z0-9]{0,6}", fullmatch=True), min_size=1, max_size=5, unique=True))
    machines: list[dict[str, Any]] = []
    ports: list[tuple[str, int, int]] = []
    for name in names:
        if draw(st.integers(0, 4)) == 0:
            machines.append({"name": name, "kind": "linux"})
            continue
        model = draw(st.sampled_from(sorted(MODELS)))
        count = MODELS[model].ports
        machines.append(
            {
                "name": name,
                "model": model,
                "memory": f"{draw(st.sampled_from(MODELS[model].memory_gib))} GB",
                "rdma": count > 0 and draw(st.booleans()),
                "os": draw(st.sampled_from(["14.7", "15.5", "26.3"])),
                "bridge": sorted(draw(st.sets(st.integers(1, count), max_size=count))) if count else [],
            }
        )
        if count and draw(st.integers(0, 3)) == 0:
            kind, name_ = draw(
                st.sampled_from([("dock", "CalDigit TS4"), ("display", "Studio Display"), ("drive", "TBU405Pro")])
            )
            machines[-1]["devices"] = [{"port": count, "kind": kind, "name": name_, "speed": "40"}]
            count -= 1
        ports += [(name, port, MODELS[model].thunderbolt) for port in range(1, count + 1)]
    cables = []
    free = draw(st.permutations(ports))
    while len(free) >= 2 and draw(st.integers(0, 3)):
        (a, a_port, a_kind), free = free[0], free[1:]
        others = [port for port in free if port[0] != a]
        if not others:
            break
        (b, b_port, b_kind) = others[0]
        free = [port for port in free if port != others[0]]
        speeds = ["20", "40"] if min(a_kind, b_kind) < 5 else ["40", "80", "120/40"]
        cables.append(
            {
                "a": f"{a}:{a_port}",
                "b": f"{b}:{b_port}",
                "speed": draw(st.sampled_from(speeds)),
                "through": draw(st.sampled_from([[], "OWC Thunderbolt Hub", ["CalDigit TS5", "Studio Display", "OWC Hub"]])),
                "seen": draw(st.sampled_from(["both", "both", "a", "b"])),
            }
        )
    return Fleet.model_validate({"machines": machines, "cables": cables})


@pytest.fixture(scope="session")
def fleets() -> st.SearchStrategy[Fleet]:
    """A strategy for fleets."""
    return _fleets()

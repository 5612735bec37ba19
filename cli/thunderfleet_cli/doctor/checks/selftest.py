"""The checks of each cable's test: connect over it, let two processes of MLX form a group, and let them add numbers. Pure.

If ``doctor`` cannot test a cable, it uses the agents' attempts and measurements. The agents connect to each other over every
cable continuously. When no group uses a cable, they form a group of two over it, which has results only if its all-reduce
returned the right sum. So results that are newer than the last change of the cable prove that it works.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from thunderfleet_crds.vocabulary import ConditionType, MeasurementTransport, ReachabilityState
from thunderfleet_lib.macnet import advice

from thunderfleet_cli.doctor.checks.cabletests import Tried, microseconds, readable
from thunderfleet_cli.doctor.checks.check import Check, State

Json = Mapping[str, Any]

WORDS = {MeasurementTransport.RDMA: "RDMA", MeasurementTransport.RING: "TCP"}
LONG_AGO = datetime.min.replace(tzinfo=UTC)


def self_test(
    link: Json, conditions: Mapping[str, Json], profiles: Mapping[str, Json], tried: Tried | None = None
) -> Iterator[Check]:
    """The checks of a cable that is connected: ``dial``, and ``pair`` and ``all-reduce`` if there is or should be a result.

    ``tried``: result of a new test; None: there was none.
    """
    if tried is None:
        yield from _evidence(link, conditions, profiles)
        return
    earlier = {check.name: check for check in _evidence(link, conditions, profiles)}
    name = str(link["metadata"]["name"])
    if tried.problem:
        yield Check("test", State.UNKNOWN, f"this cable was not tested now: {tried.problem}", subject=name)
    found = {check.name: check for check in (*_dialled(name, tried), *_grouped(name, tried))}
    # A test that an agent did not begin is no result about the cable. Earlier measurements may.
    for kind in ("dial", "pair", "all-reduce"):
        check = found.get(kind) or earlier.get(kind)
        if check is not None:
            yield check


def _dialled(name: str, tried: Tried) -> Iterator[Check]:
    """The connection over the cable."""
    answer = tried.answers.get("socket")
    if answer is None or answer.get("refused"):
        return
    if error := answer.get("error"):
        finding = (
            f"{_sentence(error)}: check the addresses of both ends of the cable; `thunderfleet doctor` on both Macs checks "
            "their firewalls"
        )
        yield Check("dial", State.FAILURE, finding, subject=name)
    else:
        finding = f"both agents connected over this cable now; a round trip took {microseconds(answer, 'rttMicroseconds')}"
        yield Check("dial", State.OK, finding, subject=name)


def _grouped(name: str, tried: Tried) -> Iterator[Check]:
    """The group of two processes, and its all-reduce."""
    answer, over = tried.answers.get("rdma"), WORDS[tried.transport]
    if answer is None:
        return
    error, formed = str(answer.get("error") or ""), f"two processes of MLX formed a group over {over} now"
    if answer.get("refused"):
        finding = f"the test of a group of two over {over} did not start: {_sentence(error)}"
        yield Check("pair", State.UNKNOWN, finding, subject=name)
    elif not error:
        yield Check("pair", State.OK, formed, subject=name)
        finding = f"both added numbers over {over} and got the right sum, in {microseconds(answer, 'allSumMicroseconds')}"
        yield Check("all-reduce", State.OK, finding, subject=name)
    elif answer.get("wrongSum"):
        yield Check("pair", State.OK, formed, subject=name)
        yield Check("all-reduce", State.FAILURE, _sentence(error), subject=name)
    else:
        finding = (
            f"two processes of MLX could not form a group over {over}: {_sentence(error)}; if neither the "
            "conditions of the cable nor the logs of both agents name the cause, replug the cable, then replace it"
        )
        yield Check("pair", State.FAILURE, finding, "kubectl describe tbl " + name, subject=name)
        finding = "the addition was not tested: the two processes did not form a group"
        yield Check("all-reduce", State.UNKNOWN, finding, subject=name)


def _sentence(error: object) -> str:
    return readable(str(error).removeprefix("not measured: ")).rstrip(".")


def _evidence(link: Json, conditions: Mapping[str, Json], profiles: Mapping[str, Json]) -> Iterator[Check]:
    """Attempts and measurements of the agents."""
    name, status = str(link["metadata"]["name"]), link.get("status") or {}
    ends = [str(link["spec"][end]["node"]) for end in ("a", "b")]
    yield _dials(name, ends, {str(end["node"]): end for end in status.get("endpoints") or ()}, profiles)
    usable = (conditions.get(ConditionType.RDMA_USABLE) or {}).get("status") == "True"
    transport = MeasurementTransport.RDMA if usable else MeasurementTransport.RING
    found = [one for one in status.get("measurements") or () if one.get("transport") == transport]
    if usable or found:
        kinds = (ConditionType.CONNECTED, *([ConditionType.RDMA_USABLE] if usable else ()))
        changed = max(_time((conditions.get(kind) or {}).get("lastTransitionTime")) for kind in kinds)
        yield _all_reduce(name, transport, found, changed, ends)


def _time(text: object) -> datetime:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return LONG_AGO
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _dials(name: str, ends: Sequence[str], endpoints: Mapping[str, Json], profiles: Mapping[str, Json]) -> Check:
    """Whether each agent connects to the other over the cable; the worst of both directions."""
    checks = [_dial(name, source, target, endpoints.get(target) or {}, profiles) for source, target in (ends, ends[::-1])]
    return max(checks, key=lambda check: list(_SEVERITY).index(check.state))


_SEVERITY = (State.OK, State.UNKNOWN, State.WARNING, State.FAILURE)


def _dial(name: str, source: str, target: str, end: Json, profiles: Mapping[str, Json]) -> Check:
    address = end.get("address")
    if not address:
        finding = f"{target} reports no address on this cable: {advice.set_address(target)}"
        return Check("dial", State.UNKNOWN, finding, subject=name)
    facts = ((profiles.get(source) or {}).get("status") or {}).get("reachability") or ()
    fact = next((one for one in facts if one.get("node") == target and one.get("address") == address), None)
    if fact is None:
        finding = f"{source} has not tried to connect to {address} of {target} yet: if that persists, see the log of its agent"
        return Check("dial", State.UNKNOWN, finding, subject=name)
    if fact.get("state") == ReachabilityState.REACHABLE:
        return Check("dial", State.OK, "both agents connect to each other over this cable", subject=name)
    state = State.FAILURE if fact.get("state") == ReachabilityState.UNREACHABLE else State.WARNING
    finding = (
        f"{source} cannot connect to {address} of {target}: check the addresses of both ends of the cable; "
        f"`thunderfleet doctor` on {target} checks its firewall"
    )
    return Check("dial", state, finding, reason=str(fact.get("state") or ""), subject=name)


def _all_reduce(
    name: str, transport: MeasurementTransport, found: Sequence[Json], changed: datetime, ends: Sequence[str]
) -> Check:
    over = WORDS[transport]
    tested = min((_time(one.get("measuredAt")) for one in found), default=LONG_AGO)
    if len(found) < 2 or tested < changed:
        since = f" since it changed at {changed:%Y-%m-%d %H:%M:%S} UTC" if found else ""
        finding = (
            f"the agents have not tested an all-reduce over {over} on this cable{since}: they do so when no group uses it "
            "(agent.measure of the chart); the condition BenchmarksFresh of both NodeProfiles shows when, or why not; to test "
            f"it now, run `thunderfleet-agent measure link {ends[1]}` in the agent's pod on {ends[0]} (kubectl exec)"
        )
        return Check("all-reduce", State.UNKNOWN, finding, subject=name)
    rate = min(int(one.get("throughputMbps") or 0) for one in found) / 1000
    finding = f"an all-reduce over {over} gave the right sum at {tested:%Y-%m-%d %H:%M:%S} UTC; {rate:.3g} Gb/s each way"
    return Check("all-reduce", State.OK, finding, subject=name)

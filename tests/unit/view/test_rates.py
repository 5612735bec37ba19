"""Live rates of cables: what two readings say, which agents are asked, and what happens without the right to."""

import json
from collections.abc import AsyncIterator

import pytest
from kubernetes.aio.client.configuration import Configuration
from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_view.live import meter, rates
from thunderfleet_view.live.feed import Feed
from thunderfleet_view.live.fleet import Fleet, Kind
from thunderfleet_view.live.meter import Meter
from thunderfleet_view.live.rates import Reading

from tests.support.page.fleetpage import FleetApi, cable, cable_name, fleet

LINK = cable_name("studio-1", 1, "studio-2", 1)
ENDS = ("studio-1", "studio-2")


def text(at: float, received: float, sent: float, name: str = LINK) -> str:
    """An agent's metrics, with others around them."""
    return (
        "# HELP thunderfleet_agent_info 1; the node of the agent.\n# TYPE thunderfleet_agent_info gauge\n"
        'thunderfleet_agent_info{node="studio-1"} 1.0\n'
        f'thunderfleet_agent_sensors_read_timestamp_seconds{{node="studio-1"}} {at}\n'
        f'thunderfleet_thunderboltlink_received_bytes_total{{name="{name}",node="studio-1"}} {received}\n'
        f'thunderfleet_thunderboltlink_sent_bytes_total{{name="{name}",node="studio-1"}} {sent}\n'
    )


def reading(at: float, received: float, sent: float) -> Reading:
    found = rates.parse([line for line in text(at, received, sent).splitlines() if rates.wanted(line)])
    assert found is not None
    return found


def test_a_rate_is_what_was_counted_between_two_readings() -> None:
    old, new = reading(1000.0, 5e6, 0), reading(1010.0, 5e6 + 1.25e9, 1e9)
    assert rates.rates(old, new) == {LINK: (1_000_000_000, 800_000_000)}


def test_the_greetings_of_agents_count_as_quiet_and_figures_have_two_digits() -> None:
    assert rates.rates(reading(0, 0, 0), reading(10, 10_000, 154_321_000)) == {LINK: (0, 120_000_000)}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (reading(1000, 9e9, 0), reading(1010, 5, 0)),
        (reading(1000, 0, 0), reading(1000, 9e9, 0)),
        (reading(1000, 0, 0), reading(900, 9e9, 0)),
        (reading(1000, 0, 0), reading(1000 + rates.MAX_SECONDS + 1, 9e9, 0)),
        (reading(1000, 0, 0), reading(1010, float("inf"), 0)),
        (reading(1000, 0, 0), reading(1010, float("nan"), 0)),
    ],
    ids=["restarted", "same reading", "clock set back", "clock set forward", "endless", "no number"],
)
def test_what_is_no_rate_is_not_shown(old: Reading, new: Reading) -> None:
    assert rates.rates(old, new) == {}


@pytest.mark.parametrize("lines", [[], ["thunderfleet_thunderboltlink_sent_bytes_total{"], [f"{rates.TIME} {'9' * 999}x"]])
def test_what_is_no_answer_of_an_agent_says_nothing(lines: list[str]) -> None:
    assert rates.parse(lines) is None


def test_few_macs_cover_all_cables() -> None:
    assert rates.enough([("a", "b"), ("a", "c"), ("a", "d")]) == {"a"}
    assert rates.enough([("a", "b"), ("c", "d")]) == {"a", "c"}
    assert rates.enough([("a", "a")]) == set()
    mesh = [(a, b) for a in "abcd" for b in "abcd" if a < b]
    assert len(rates.enough(mesh)) == 3


@pytest.fixture
async def api() -> AsyncIterator[FleetApi]:
    found = FleetApi()
    await found.start()
    yield found
    await found.stop()


class Scene:
    """A meter of two Macs with a cable, whose agents the API leads to."""

    def __init__(self, kube: Kube) -> None:
        self.fleet, self.feed = Fleet(), Feed()
        self.meter = Meter(kube, self.fleet, self.feed)
        for kind, items in fleet(2, 2, idle=0).items():
            for item in items:
                self.fleet.put(kind, item["metadata"]["name"], item)

    def said(self) -> tuple[dict[str, list[int]], str]:
        """Rates, and why there are none."""
        message = json.loads(self.feed.message([], whole=False, noted=False, metered=True))
        return message["rates"], message["noRates"]


@pytest.fixture
async def scene(api: FleetApi) -> AsyncIterator[Scene]:
    configuration = Configuration()
    configuration.host = api.url
    async with Kube(configuration) as kube:
        yield Scene(kube)


@pytest.mark.parametrize(("mac", "shown"), [(ENDS[0], [16, 8]), (ENDS[1], [8, 16])], ids=["first end", "second end"])
async def test_rates_have_the_direction_of_the_cable(
    api: FleetApi, scene: Scene, mac: str, shown: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "enough", lambda cables: {mac})
    api.agents = {mac: text(1000, 0, 0)}
    await scene.meter.round()
    assert scene.said() == ({}, "")
    api.agents[mac] = text(1010, 1.25e9, 2.5e9)
    assert await scene.meter.round() == 1
    # It received 1 and sent 2 Gb/s.
    assert scene.said() == ({LINK: [125_000_000 * one for one in shown]}, "")
    # The same reading once more says nothing new.
    await scene.meter.round()
    assert scene.said()[0] == {LINK: [125_000_000 * one for one in shown]}


async def test_one_end_of_a_cable_is_asked_and_only_while_it_is_connected(api: FleetApi, scene: Scene) -> None:
    api.agents = {mac: text(1000, 0, 0) for mac in ENDS}
    await scene.meter.round()
    assert api.asked == [ENDS[0]]
    scene.fleet.put(Kind.LINKS, LINK, cable("studio-1", 1, "studio-2", 1, "False"))
    assert await scene.meter.round() == 0
    assert api.asked == [ENDS[0]]


async def test_an_agent_cannot_speak_for_the_cables_of_others(api: FleetApi, scene: Scene) -> None:
    other = cable_name("studio-3", 1, "studio-4", 1)
    scene.fleet.put(Kind.LINKS, other, cable("studio-3", 1, "studio-4", 1))
    api.agents = {ENDS[0]: text(1000, 0, 0, other)}
    await scene.meter.round()
    api.agents = {ENDS[0]: text(1010, 9e9, 9e9, other)}
    await scene.meter.round()
    assert scene.said()[0] == {}


async def test_an_agent_that_does_not_answer_has_no_rate_and_too_long_an_answer_is_not_read(
    api: FleetApi, scene: Scene
) -> None:
    api.agents = {ENDS[0]: text(1000, 0, 0)}
    await scene.meter.round()
    api.agents = {ENDS[0]: text(1010, 1.25e9, 0)}
    await scene.meter.round()
    assert scene.said()[0]
    api.agents = {ENDS[0]: "x" * 100 + "\n" + ("y" * 99 + "\n") * (meter.ANSWER_BYTES // 100)}
    await scene.meter.round()
    assert scene.said() == ({}, "")


async def test_a_missing_right_is_named(api: FleetApi, scene: Scene) -> None:
    api.agents, api.agents_status = {ENDS[0]: ""}, 403
    with pytest.raises(ApiError) as caught:
        await scene.meter.round()
    assert "--subresource=proxy" in meter._refused(caught.value)


async def test_one_pod_that_refuses_hides_no_other_cable(api: FleetApi, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anyone who may create pods can label one like an agent; what it answers is no answer of the API server."""
    monkeypatch.setattr(rates, "enough", lambda cables: set(ENDS))
    asked = meter.Meter._ask

    async def ask(self: Meter, mac: str, path: str) -> ApiError | None:
        return ApiError(403, "Forbidden", "no") if mac == ENDS[1] else await asked(self, mac, path)

    monkeypatch.setattr(Meter, "_ask", ask)
    for at in (0, 10):
        api.agents = {ENDS[0]: text(1000 + at, at * 1e8, 0), ENDS[1]: ""}
        await scene.meter.round()
    assert LINK in scene.said()[0]


async def test_nobody_is_asked_while_nobody_looks(api: FleetApi, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A meter without readers does no round; one reader is enough."""
    rounds: list[int] = []

    async def counted() -> int:
        rounds.append(scene.feed.readers)
        return 0

    async def pause(_: float) -> None:
        if rounds or len(pauses) > 3:
            raise StopAsyncIteration
        pauses.append(0)
        if len(pauses) == 3:
            scene.feed.open()

    pauses: list[int] = []
    monkeypatch.setattr(scene.meter, "round", counted)
    monkeypatch.setattr("thunderfleet_view.live.meter.asyncio.sleep", pause)
    with pytest.raises((StopAsyncIteration, RuntimeError)):
        await scene.meter.run()
    assert rounds == [1]

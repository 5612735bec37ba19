"""Events about pods: written once each, also over a connection that loses answers."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from thunderfleet_kubelet.pods import events
from thunderfleet_kubelet.pods.events import Recorder, event_name
from thunderfleet_lib.kube import Kube

from tests.support.pods import Api, sh
from tests.support.waiting import until_async


@contextlib.asynccontextmanager
async def recorder(api: Api) -> AsyncIterator[Recorder]:
    made = Recorder(lambda: cast(Kube, api), "studio-1")
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    monkeypatch.setattr(events, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(events, "QUIET_SECONDS", 0.0)
    return Api()


def seen(api: Api) -> list[tuple[Any, ...]]:
    return [(event["reason"], event["count"]) for event in api.events]


async def test_an_event_whose_answer_is_lost_is_written_once(api: Api) -> None:
    pod = api.add_pod("web", {"containers": [sh("true")]})
    api.lose_answers = 1
    async with recorder(api) as made:
        made.pod(pod, "Normal", "Pulled", "image is here", "main")
        made.pod(pod, "Normal", "Started", "container started", "main")
        await until_async(lambda: [reason for reason, _ in seen(api)][-1:] == ["Started"], seconds=60)
    assert seen(api) == [("Pulled", 1), ("Started", 1)]


async def test_a_repeated_event_counts_up_the_one_whose_answer_was_lost(api: Api) -> None:
    pod = api.add_pod("web", {"containers": [sh("true")]})
    api.lose_answers = 1
    async with recorder(api) as made:
        made.pod(pod, "Warning", "BackOff", "waits before it starts again", "main")
        await until_async(lambda: bool(api.events), seconds=60)
        made.pod(pod, "Warning", "BackOff", "waits before it starts again", "main")
        await until_async(lambda: seen(api) == [("BackOff", 2)], seconds=60, describe=lambda: str(api.events))


async def test_events_of_a_series_are_one_with_the_message_of_the_last_write(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = api.add_pod("web", {"containers": [sh("true")]})
    async with recorder(api) as made:
        made.pod(pod, "Normal", "Unhealthy", "Readiness probe failed: loading", "main", "readiness probe")
        await until_async(lambda: seen(api) == [("Unhealthy", 1)], seconds=60)
        made.pod(pod, "Normal", "Unhealthy", "Readiness probe failed: comparing", "main", "readiness probe")
        await until_async(lambda: seen(api) == [("Unhealthy", 2)], seconds=60)
        assert api.events[0]["message"] == "Readiness probe failed: comparing"
        # Another probe, and a fault.
        made.pod(pod, "Normal", "Unhealthy", "Startup probe failed: loading", "main", "startup probe")
        made.pod(pod, "Warning", "Unhealthy", "Readiness probe failed: loading", "main", "readiness probe")
        await until_async(lambda: seen(api) == [("Unhealthy", 2), ("Unhealthy", 1), ("Unhealthy", 1)], seconds=60)
        monkeypatch.setattr(events, "QUIET_SECONDS", 600.0)
        made.pod(pod, "Warning", "Unhealthy", "Readiness probe failed: comparing", "main", "readiness probe")
        made.pod(pod, "Normal", "Killing", "Stopping container main", "main")
        await until_async(lambda: seen(api)[-1] == ("Killing", 1), seconds=60)
        assert [event["message"] for event in api.events][2] == "Readiness probe failed: loading"


async def test_an_event_that_expired_is_written_again(api: Api) -> None:
    pod = api.add_pod("web", {"containers": [sh("true")]})
    async with recorder(api) as made:
        made.pod(pod, "Warning", "BackOff", "waits before it starts again", "main")
        await until_async(lambda: seen(api) == [("BackOff", 1)], seconds=60)
        api.events.clear()
        made.pod(pod, "Warning", "BackOff", "waits before it starts again", "main")
        await until_async(lambda: seen(api) == [("BackOff", 2)], seconds=60)


@pytest.mark.parametrize("about", ["web", "x" * 253, "x" * 235 + ".y" * 9])
def test_names_are_new_and_as_the_api_server_wants_them(about: str) -> None:
    one, other = event_name(about), event_name(about)
    assert one != other
    assert len(one) <= 253
    label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert re.fullmatch(rf"{label}(\.{label})*", one)

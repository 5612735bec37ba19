"""How long clients of the API server wait after a failed request."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.kube import ApiError, Kube, Reflector, Retries, retries
from thunderfleet_lib.kube.client import Page

SILENT = ApiError(0, "Unreachable", "connection refused")
FORBIDDEN = ApiError(403, "Forbidden", "pods is forbidden")


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REFUSED", "UNANSWERED"):
        known = getattr(retries, name)
        monkeypatch.setattr(retries, name, Backoff(known.first, known.limit, known.factor))


def test_silence_is_asked_often_and_a_refusal_ever_more_rarely() -> None:
    waits = Retries()
    assert [waits.seconds(SILENT) for _ in range(6)] == [0.5, 1.0, 2.0, 2.0, 2.0, 2.0]
    waits = Retries()
    assert [waits.seconds(FORBIDDEN) for _ in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    waits.succeeded()
    assert waits.seconds(FORBIDDEN) == 0.5


def test_the_first_refusal_after_silence_is_asked_again_soon() -> None:
    """An API server that has just started forbids everything for a moment."""
    waits = Retries()
    for _ in range(9):
        waits.seconds(SILENT)
    assert [waits.seconds(FORBIDDEN) for _ in range(3)] == [0.5, 1.0, 2.0]


async def test_a_reflector_waits_like_this(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks an API server that boots after this machine, and which then refuses everybody once."""
    slept: list[float] = []
    answers = [*[SILENT] * 5, FORBIDDEN]

    class Server:
        async def pages(self, path: str, query: object) -> AsyncIterator[Page]:
            if answers:
                raise answers.pop(0)
            yield Page([], "1")

        async def watch(self, *_: object, **__: object) -> AsyncIterator[tuple[str, Any]]:
            await asyncio.Event().wait()
            yield "", None

    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    reflector = Reflector(cast(Kube, Server()), "/api/v1/pods")
    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "sleep", noted)
        running = asyncio.create_task(reflector.run())
        await reflector.synced.wait()
    assert slept == [0.5, 1.0, 2.0, 2.0, 2.0, 0.5]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

"""The lists that fill the cache before the first round."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest
from thunderfleet_lib.kube import ApiError, Kube
from thunderfleet_lib.kube.client import Page
from thunderfleet_operator.watch import lists as lists_module
from thunderfleet_operator.watch.cache import CACHED, NODES, Cache
from thunderfleet_operator.watch.lists import FILLED_AT_ONCE, Lists

from tests.support.waiting import until_async

LIMIT_SECONDS = 20.0


class Slow(Kube):
    """Answers no list before ``together`` lists are being read, and none of the kinds in ``missing``."""

    def __init__(self, together: int, missing: frozenset[str] = frozenset()) -> None:
        self._enough = asyncio.Event()
        self._together, self.missing = together, missing
        self.reading = self.most = 0
        self.listed = list[str]()

    async def pages(self, path: str, query: Mapping[str, object], accept: str = "") -> AsyncIterator[Page]:
        if path in self.missing:
            raise ApiError(404, "NotFound", f"{path} is not served")
        self.reading += 1
        self.most = max(self.most, self.reading)
        if self.reading >= self._together:
            self._enough.set()
        await self._enough.wait()
        # Others may begin meanwhile.
        for _ in range(50):
            await asyncio.sleep(0)
        self.reading -= 1
        self.listed.append(path)
        meta = {"name": "one", "uid": "uid-one", "resourceVersion": "5"}
        yield Page([{"metadata": meta}] if path == NODES.path else [], "9")


def of(kube: Kube, cache: Cache) -> Lists:
    return Lists(kube, cache, lambda *_: pytest.fail("the first lists tell nobody"))


async def test_some_kinds_are_listed_at_once() -> None:
    """The API server answers each page late, and does little meanwhile. All kinds at once could take too much memory."""
    kube, cache = Slow(together=FILLED_AT_ONCE), Cache()
    async with asyncio.timeout(LIMIT_SECONDS):
        await of(kube, cache).fill()
    assert kube.most == FILLED_AT_ONCE and 2 <= FILLED_AT_ONCE < len(CACHED)
    assert sorted(kube.listed) == sorted(one.path for one in CACHED) and set(cache[NODES].items) == {"one"}


async def test_kinds_that_are_missing_do_not_keep_others_from_being_listed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lists_module, "RETRY_SECONDS", 0.01)
    missing = frozenset(one.path for one in CACHED[: FILLED_AT_ONCE + 1])
    kube, cache = Slow(together=1, missing=missing), Cache()
    async with asyncio.timeout(LIMIT_SECONDS):
        filling = asyncio.create_task(of(kube, cache).fill())
        await until_async(lambda: len(kube.listed) == len(CACHED) - len(missing))
        assert not filling.done() and not cache[NODES].items
        kube.missing = frozenset()
        await filling
    assert set(cache[NODES].items) == {"one"}
    assert any(said.startswith("cannot list nodes: ") and "helm upgrade" in said for said in caplog.messages)


async def test_an_error_that_no_retry_mends_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator ends with its text, such as that of a kubeconfig that cannot be read."""
    kube = Slow(together=1)

    def unreadable(*_: object) -> AsyncIterator[Page]:
        raise PermissionError("cannot read the token")

    monkeypatch.setattr(kube, "pages", unreadable)
    with pytest.raises(PermissionError, match="cannot read the token"):
        async with asyncio.timeout(LIMIT_SECONDS):
            await of(kube, Cache()).fill()

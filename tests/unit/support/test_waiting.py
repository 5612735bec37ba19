"""Waits return what they waited for, and say at their limit what was missing."""

from types import SimpleNamespace

import pytest

from tests.support import waiting
from tests.support.waiting import NotInTimeError, until, until_async


def test_it_returns_the_first_true_value() -> None:
    values = iter((0, "", "there"))
    assert until(lambda: next(values), pause=0) == "there"


def test_at_the_limit_it_says_what_was_missing() -> None:
    with pytest.raises(NotInTimeError, match=r"(?s)not within 0 s: the moon is blue.*it is grey"):
        until(lambda: False, "the moon is blue", 0, describe=lambda: "it is grey")


def test_only_the_named_errors_count_as_false() -> None:
    def raises() -> bool:
        raise KeyError("absent")

    with pytest.raises(NotInTimeError, match="last error: 'absent'"):
        until(raises, seconds=0, retry_on=(KeyError,))
    with pytest.raises(KeyError):
        until(raises, seconds=0, retry_on=(IndexError,))


async def test_a_condition_may_be_a_coroutine_function() -> None:
    values = iter((False, True))

    async def holds() -> bool:
        return next(values)

    await until_async(holds, pause=0)
    assert not list(values)


async def test_an_asynchronous_wait_ends_at_its_limit_too() -> None:
    with pytest.raises(NotInTimeError, match="not within 0 s: never"):
        await until_async(lambda: False, "never", 0)


def test_a_wait_near_its_limit_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[waiting.Near]()
    now = iter((0.0, 4.0, 0.0, 6.0))
    monkeypatch.setattr(waiting, "NEAR_LIMIT", found)
    # Not the module of all: threads that other tests have left ask it as well.
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: next(now)))
    for goal in ("early", "late"):
        until(lambda: True, goal, 10)
    assert found == [("late", 6.0, 10)]

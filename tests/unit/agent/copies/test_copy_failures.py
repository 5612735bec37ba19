"""Which ways and Macs a copy does not use for a while."""

from __future__ import annotations

from thunderfleet_agent.copies.failures import DROP_SECONDS, RETRY, Failures


def test_a_way_that_failed_is_tried_again_later_and_later_until_it_works() -> None:
    failures = Failures()
    assert failures.usable("cable", "b", 0.0)
    assert failures.failed("cable", "no answer", 0.0), "the first failure is logged"
    assert not failures.usable("cable", "b", RETRY.seconds(1) - 0.01)
    assert failures.usable("lan", "b", 0.0), "other ways to the Mac are used"
    assert failures.usable("cable", "b", RETRY.seconds(1))
    assert not failures.failed("cable", "no answer", 10.0)
    assert not failures.usable("cable", "b", 10.0 + RETRY.seconds(2) - 0.01)
    assert failures.texts() == ["no answer"]
    failures.worked("cable")
    assert failures.texts() == []
    assert failures.failed("cable", "no answer", 20.0), "after it has worked, a failure is the first one again"
    assert failures.usable("cable", "b", 20.0 + RETRY.seconds(1))


def test_a_mac_that_sent_wrong_bytes_is_used_again_after_its_time() -> None:
    failures = Failures()
    failures.failed("lan", "closed the connection", 0.0)
    failures.drop("b", "b sent wrong bytes", 0.0)
    assert failures.is_dropped("b") and not failures.is_dropped("c")
    assert failures.texts() == ["b sent wrong bytes", "closed the connection"]
    assert not failures.usable("cable", "b", DROP_SECONDS - 0.01)
    assert failures.usable("cable", "c", DROP_SECONDS - 0.01)
    assert failures.usable("cable", "b", DROP_SECONDS) and not failures.is_dropped("b")

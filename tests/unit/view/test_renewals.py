"""Leases: who is silent, whose clock is wrong, and when silence says nothing about who is silent."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from thunderfleet_view.renewals import ahead, behind, noted, silent_kubelets

Json = dict[str, Any]

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def lease(age: float, clock: float = 0.0, *, noted: bool = True) -> Json:
    """Renewed ``age`` seconds ago by a holder whose clock is ``clock`` seconds ahead. ``noted``: the API server says when."""
    then = NOW - timedelta(seconds=age)
    spec = {"renewTime": (then + timedelta(seconds=clock)).isoformat()}
    other = {"manager": "kubectl", "time": NOW.isoformat(), "fieldsV1": {"f:metadata": {"f:labels": {}}}}
    own = {"manager": "holder", "time": then.isoformat(), "fieldsV1": {"f:spec": {"f:renewTime": {}}}}
    return {"metadata": {"name": "one", **({"managedFields": [other, own]} if noted else {})}, "spec": spec}


def test_the_time_of_a_renewal_is_that_of_the_field_and_by_the_api_servers_clock() -> None:
    assert noted(lease(40, clock=3600)) == NOW - timedelta(seconds=40), "not of a label that somebody set"
    assert noted(lease(40, noted=False)) is None
    odd: list[Json] = [
        {},
        {"metadata": {"managedFields": [{"fieldsV1": None}, {"time": "soon", "fieldsV1": {"f:spec": None}}]}},
    ]
    assert [noted(one) for one in odd] == [None, None] and [ahead(one) for one in odd] == [0, 0]


def test_a_wrong_clock_makes_nobody_look_silent() -> None:
    leases = {"kube-scheduler": lease(1), "kube-controller-manager": lease(2), "operator": lease(3, clock=3600)}
    assert behind(leases) == {}
    assert behind({**leases, "kube-scheduler": lease(40, clock=3600)}) == {"kube-scheduler": 38}
    assert behind({**leases, "operator": lease(40, clock=-3600)}) == {"operator": 39}


@pytest.mark.parametrize(("clock", "found"), [(0, 0), (3, 0), (-5, 0), (3600, 3600), (-3600, -3600)])
def test_a_clock_is_wrong_by_more_than_a_request_takes(clock: float, found: float) -> None:
    assert ahead(lease(4, clock=clock)) == found
    assert ahead(lease(4, clock=clock, noted=False)) == 0, "nothing to compare with"


def test_a_kubelet_is_silent_while_others_renew() -> None:
    working = {"studio-1": lease(9), "studio-2": lease(4), "studio-3": lease(10)}
    assert silent_kubelets(working) == {}
    assert silent_kubelets({**working, "studio-2": lease(40)}) == {"studio-2": 31}
    assert silent_kubelets({**working, "studio-2": lease(30)}) == {}, "one renewal is late"


def test_the_only_kubelet_is_compared_with_the_control_plane() -> None:
    assert silent_kubelets({"studio-1": lease(40)}) == {}
    assert silent_kubelets({"studio-1": lease(40)}, [lease(1), lease(2)]) == {"studio-1": 39}


def test_most_kubelets_are_silent_only_after_the_api_server_was() -> None:
    """Whoever renews first afterwards is no reason to name all others."""
    several = {f"studio-{number}": lease(40) for number in range(3)}
    assert silent_kubelets(several, [lease(1), lease(1)]) == {}
    assert silent_kubelets({**several, "studio-0": lease(1)}) == {}
    assert set(silent_kubelets({**several, "studio-0": lease(1), "studio-1": lease(2)})) == {"studio-2"}

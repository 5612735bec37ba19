"""Thunderbolt ports leave the Thunderbolt Bridge: decisions, tried on the network settings of a recorded Mac."""

import itertools
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from thunderfleet_lib.host.hostcmd import Failure, FailureKind
from thunderfleet_lib.macnet import keeper, record, switch
from thunderfleet_lib.macnet.decide import Goal
from thunderfleet_lib.macnet.keeper import Keeper
from thunderfleet_lib.macnet.subnets import DEFAULT_NETWORK, cable_address
from thunderfleet_lib.macnet.switch import Reach
from thunderfleet_lib.macnet.values import Record

from tests.support.generated import examples
from tests.support.network.mac_network import BRIDGED, CABLE, SERVER, Killed, Mac, persistent


def settle(mac: Mac, path: Path, goal: Goal | None = None, rounds: int = 60, always: bool = False) -> Keeper:
    """Runs rounds as the kubelet does, one a second of simulated time, until nothing is left to do.

    ``always``: the API server must be reached after each of them.
    """
    kept = Keeper(mac.run, path)
    since = {"answer": 0.0, "none": 0.0, "trial": 0.0}
    for second in itertools.count():
        assert second < rounds, f"not settled: {kept.record}"
        answers = mac.reached()
        since["answer" if not answers else "none"] = float(second)
        if not kept.record.trial:
            since["trial"] = float(second)
        lost = second - max(since["none"], since["trial"]) if not answers else 0.0
        steady = second - max(since["answer"], since["trial"]) if answers else 0.0
        reach = Reach(answers, steady, lost, second - since["trial"])
        done = kept.round(goal or Goal(SERVER), reach)
        assert not done.failures, done.failures
        assert mac.reached() or not always, done.decision.note
        if not done.decision.commands and not kept.record.trial and not done.decision.outcome:
            return kept
    raise AssertionError


def test_every_port_gets_a_service_and_leaves_the_bridge(tmp_path: Path) -> None:
    mac, path = Mac("1, 2", cables=1), tmp_path / "ports.json"
    goal = Goal(SERVER, addresses={"Thunderbolt 1": CABLE})
    kept = settle(mac, path, goal)
    assert kept.record.confirmed and mac.settings.members == () and mac.address(1) == CABLE
    own = {one.name: one for one in mac.settings.services if one.name.startswith("Thunderfleet ")}
    # Ports 3 and 4 have services of their own, as somebody has set them.
    assert set(own) == {"Thunderfleet Thunderbolt 1", "Thunderfleet Thunderbolt 2"}
    assert not next(one for one in mac.settings.services if one.device == "bridge0").enabled
    kinds = [argv[1] if argv[0] == "networksetup" else argv[2] for argv in mac.done]
    assert kinds.index("-setmanual") < kinds.index("deletem") < kinds.index("-setnetworkserviceenabled"), "the address is first"
    before = len(mac.done)
    settle(mac, path, goal)
    assert len(mac.done) == before, "a second run changes nothing"


def test_a_restart_needs_no_trial(tmp_path: Path) -> None:
    mac, path = Mac("1, 2"), tmp_path / "ports.json"
    settle(mac, path)
    mac.restart()
    assert mac.settings.members, "macOS puts them back"
    Keeper(mac.run, path).round(Goal(SERVER), Reach(answers=False))
    assert mac.settings.members == (), "at once, and without asking the API server, whose route may lead through a port"


def test_the_address_of_the_only_route_moves_with_it(tmp_path: Path) -> None:
    mac, path = Mac("1, 2", cables=1, route="bridge0"), tmp_path / "ports.json"
    kept = settle(mac, path, Goal(SERVER, addresses={"Thunderbolt 1": CABLE}), always=True)
    assert mac.reached() and mac.settings.members == () and mac.address(1) == BRIDGED and kept.record.confirmed
    mac.restart()
    settle(mac, path, Goal(SERVER, addresses={"Thunderbolt 1": CABLE}))
    assert mac.reached() and mac.address(1) == BRIDGED


def test_the_server_itself_keeps_the_address_of_its_bridge(tmp_path: Path) -> None:
    """On the Mac with the control plane, the route to its own address leads to lo0."""
    mac, goal = Mac("1", cables=1, route="bridge0", shown="lo0"), Goal(str(BRIDGED.ip))
    settle(mac, tmp_path / "ports.json", goal)
    assert mac.address(1) == BRIDGED


def test_a_bridge_that_joins_cables_and_carries_the_route_stays(tmp_path: Path) -> None:
    mac = Mac("1, 2", cables=2, route="bridge0")
    done = Keeper(mac.run, tmp_path / "ports.json").round(Goal(SERVER), Reach(answers=True))
    assert mac.done == [] and "Connect this Mac to a LAN" in done.decision.problem


def test_a_switch_that_loses_the_api_server_is_undone_and_not_tried_again(tmp_path: Path) -> None:
    mac, path = Mac("1, 2", cables=2, route="bridge0", shown="en0"), tmp_path / "ports.json"
    kept = settle(mac, path)
    assert persistent(mac.settings) == persistent(mac.start) and mac.reached()
    assert any(argv[-2] == "deletem" for argv in mac.done), "it was tried"
    tried = len(mac.done)
    settle(mac, path)
    assert len(mac.done) == tried and kept.record.refused
    mac.shown = "en1"
    settle(mac, path)
    assert len(mac.done) > tried, "something has changed"


def test_nothing_begins_while_the_api_server_does_not_answer(tmp_path: Path) -> None:
    mac, path = Mac("1"), tmp_path / "ports.json"
    kept = Keeper(mac.run, path)
    for _ in range(5):
        done = kept.round(Goal(SERVER), Reach(answers=False, lost_seconds=99))
    assert mac.settings.members == ("en2",) and "until the API server answers" in done.decision.waiting


def test_a_cable_that_is_about_to_be_known_is_waited_for(tmp_path: Path) -> None:
    mac, path = Mac("1"), tmp_path / "ports.json"
    kept = Keeper(mac.run, path)
    for _ in range(5):
        done = kept.round(Goal(SERVER, waiting=frozenset({"Thunderbolt 1"})), Reach(answers=True))
    assert mac.settings.members == ("en2",) and "until the cable at Thunderbolt 1 is known" in done.decision.waiting


def test_an_address_that_is_used_elsewhere_is_not_set(tmp_path: Path) -> None:
    mac = Mac("1")
    goal = Goal(SERVER, addresses={"Thunderbolt 1": IPv4Interface("192.168.64.201/30")})
    kept = settle(mac, tmp_path / "ports.json", goal)
    assert mac.settings.members == () and str(mac.address(1)).startswith("169.254.")
    done = kept.round(goal, Reach(answers=True))
    assert "set another cableNetwork" in done.decision.problem


def test_settings_that_cannot_be_read_confirm_nothing_and_undo_in_time(tmp_path: Path) -> None:
    mac, path = Mac("1"), tmp_path / "ports.json"
    kept = Keeper(mac.run, path)
    while not kept.record.trial:
        kept.round(Goal(SERVER), Reach(answers=True))
    true, blind = mac.run, Failure("ifconfig -a", FailureKind.TIMED_OUT, "did not answer within 10 s")
    kept._run = lambda argv, seconds: blind if argv[:2] == ("ifconfig", "-a") else true(argv, seconds)
    kept.round(Goal(SERVER), Reach(answers=True, steady_seconds=99))
    assert kept.record.trial
    kept.round(Goal(SERVER), Reach(answers=True, trial_seconds=switch.UNVERIFIED_SECONDS))
    assert kept.record.undoing


def test_an_undo_that_continues_claims_no_more_than_the_record_shows(tmp_path: Path) -> None:
    """The record keeps that a switch was refused, not which of its two limits it exceeded."""
    mac, path = Mac("1", cables=1), tmp_path / "ports.json"
    settle(mac, path)
    stopped = Keeper(mac.run, path)
    stopped.round(Goal(SERVER, managed=False), Reach(answers=True))
    assert stopped.record.undoing and not stopped.record.refused
    note = stopped.round(Goal(SERVER), Reach(answers=True)).decision.note
    assert "when thunderboltPorts was set back to Managed" in note and "API server" not in note
    refused = switch.why_undoing(Record(undoing=True, refused="en0 Thunderbolt 1+"))
    assert "API server was not reached" in refused and "not ready in time" in refused


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Killed between the end of its services and their removal.
@example(bridged="1, 2", cables=2, route="bridge0", honest=False, kills=[(7, False), (2, False), (2, False)], reset=False)
@given(
    bridged=st.sampled_from(["", "1", "1, 2", "1, 2, 3, 4"]),
    cables=st.integers(0, 2),
    route=st.sampled_from(["en0", "bridge0"]),
    honest=st.booleans(),
    kills=st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=3),
    reset=st.booleans(),
)
def test_from_any_interruption_the_end_is_the_goal_or_the_beginning(
    tmp_path_factory: pytest.TempPathFactory,
    bridged: str,
    cables: int,
    route: str,
    honest: bool,
    kills: list[tuple[int, bool]],
    reset: bool,
) -> None:
    if route == "bridge0" and not (bridged and cables):
        route = "en0"
    bridged = bridged or "1"
    path = tmp_path_factory.mktemp("mac") / "ports.json"
    mac = Mac(bridged, cables, route, shown=route if honest else "en0")
    was_reached = mac.reached()
    for command, power in kills:
        mac.kill_at = mac.writes + command
        try:
            settle(mac, path, rounds=120)
        except Killed:
            if power:
                mac.restart()
        mac.kill_at = -1
    settle(mac, path, rounds=200)
    assert mac.reached() == was_reached, "no end without the API server"
    over_cables = [end for end in mac.now.ends if end.address is None and end.interface not in mac.start.members]
    assert not over_cables
    if mac.settings.members:
        assert persistent(mac.settings) == persistent(mac.start), "all of it, or nothing"
    if reset:
        assert keeper.undo(mac.run, path) == () and not path.exists()
        assert persistent(mac.settings) == persistent(mac.start)


def test_a_service_that_macos_does_not_remove_is_disabled(tmp_path: Path) -> None:
    """`networksetup` refuses to remove the last service of a port."""
    mac, path = Mac("1"), tmp_path / "ports.json"
    settle(mac, path)
    refusal = Failure("networksetup -removenetworkservice", FailureKind.FAILED, "exited with code 4")
    true = mac.run
    assert keeper.undo(lambda argv, seconds: refusal if "-removenetworkservice" in argv else true(argv, seconds), path) == ()
    (left,) = [one for one in mac.settings.services if one.name.startswith("Thunderfleet ")]
    assert not left.enabled and mac.settings.members == ("en2",) and not path.exists()
    settle(mac, path)
    assert not mac.settings.members and mac.settings.service_of("en2") is not None, "and is used again"


def test_undo_says_what_it_could_not_undo(tmp_path: Path) -> None:
    mac, path = Mac("1"), tmp_path / "ports.json"
    settle(mac, path)
    refusal = Failure("ifconfig bridge0 addm en2", FailureKind.FAILED, "exited with code 1")
    true = mac.run
    stubborn = lambda argv, seconds: refusal if "addm" in argv else true(argv, seconds)  # noqa: E731
    assert list(keeper.undo(stubborn, path)) == [str(refusal)]
    assert not keeper.undo(mac.run, path) and persistent(mac.settings) == persistent(mac.start)


def test_a_record_that_is_damaged_still_lets_our_services_be_removed(tmp_path: Path) -> None:
    mac, path = Mac("1"), tmp_path / "ports.json"
    settle(mac, path)
    path.write_bytes(b'{"version": 1, "services": 7}')
    assert Keeper(mac.run, path).problem.endswith("services has the wrong type")
    keeper.undo(mac.run, path)
    assert not [one for one in mac.settings.services if one.name.startswith("Thunderfleet ")]


def test_a_record_survives_as_it_is(tmp_path: Path) -> None:
    full = Record(("A",), {"Thunderbolt 1": "bridge0"}, ("B",), {"Thunderbolt 1": "10.0.0.1/30"}, confirmed=True, refused="x")
    path = tmp_path / "ports.json"
    record.save(path, full)
    assert record.load(path) == full and path.stat().st_mode & 0o777 == 0o600
    record.save(path, Record())
    assert not path.exists() and record.load(path) == Record()


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b'{"version": 2}', b'{"version": 1, "kept": {"a": "b"}}', b'{"version": 1, "x": 1}', b"\xff"],
)
def test_what_is_no_record_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        record.parse(text)


@given(st.sets(st.tuples(st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True), st.integers(1, 6)), min_size=2, max_size=2))
def test_both_ends_of_a_cable_agree(ends: set[tuple[str, int]]) -> None:
    one, other = ends
    here, there = cable_address(DEFAULT_NETWORK, one, other), cable_address(DEFAULT_NETWORK, other, one)
    assert here.network == there.network and here != there
    assert {here.ip, there.ip} == set(here.network.hosts()) and here.network.subnet_of(DEFAULT_NETWORK)


def test_cables_have_different_networks() -> None:
    fleet = [(f"studio-{number}", port) for number in range(20) for port in range(1, 7)]
    found = [cable_address(DEFAULT_NETWORK, one, other).network for one, other in zip(fleet[::2], fleet[1::2], strict=True)]
    assert len(set(found)) == len(found)
    small = cable_address(IPv4Network("172.30.0.0/24"), ("a", 1), ("b", 1))
    assert small.network.subnet_of(IPv4Network("172.30.0.0/24"))

"""Which requests run and which wait."""

from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_crds.exchange import routing
from thunderfleet_crds.exchange.plan import RouterPlan
from thunderfleet_crds.vocabulary import KeyPriority
from thunderfleet_lib.httpapi import routed
from thunderfleet_runner.api.http.turns import ANYONE, Place, Turn, Turns, place_of

HIGH, LOW = Place(KeyPriority.HIGH, "h"), Place(KeyPriority.LOW, "l")


def taken(turns: Turns, tokens: int, place: Place = ANYONE) -> Turn:
    turn = turns.ask(tokens, place)
    assert turn is not None
    return turn


def test_number_and_tokens_are_limited() -> None:
    turns = Turns(budget=10, slots=2, queue=1)
    first, second = taken(turns, 4), taken(turns, 6)
    assert first.admitted and second.admitted and turns.limit == 3
    third = taken(turns, 1)
    assert not third.admitted and turns.ask(1) is None, "two run, one waits, and there is no room for more"
    assert (turns.running, turns.waiting) == (2, 1)
    assert turns.end(second) == (third,) and third.admitted
    large = taken(turns, 6)
    assert not large.admitted, "a slot would be free, but not the tokens"
    assert turns.end(third) == (large,)


def test_nobody_overtakes() -> None:
    turns = Turns(budget=10, slots=4, queue=2)
    first, large = taken(turns, 8), taken(turns, 9)
    small = taken(turns, 1)
    assert not large.admitted and not small.admitted
    assert turns.end(large) == (small,), "who gives up lets the next in"
    assert turns.end(large) == turns.end(small) == turns.end(first) == () and turns.running == 0


def test_a_request_beyond_the_budget_runs_alone() -> None:
    turns = Turns(budget=10, slots=4, queue=2)
    huge, small = taken(turns, 1000), taken(turns, 1)
    assert huge.admitted and not small.admitted
    assert turns.end(huge) == (small,) and turns.end(huge) == ()
    assert turns.running == 1, "the second end of a request takes nothing from others"


def test_priorities_come_first_then_callers_take_turns() -> None:
    turns = Turns(budget=10, slots=1, queue=9)
    running = taken(turns, 1)
    low = taken(turns, 1, LOW)
    many = [taken(turns, 1, Place(caller_id="a")) for _ in range(3)]
    one = taken(turns, 1, Place(caller_id="b"))
    high = taken(turns, 1, HIGH)
    order = []
    while (following := turns.end(running)) != ():
        (running,) = following
        order.append(running)
    assert order == [high, many[0], one, many[1], many[2], low]


def test_an_urgent_request_does_not_wait_behind_one_that_has_no_room() -> None:
    turns = Turns(budget=10, slots=4, queue=4)
    first, large = taken(turns, 5), taken(turns, 9)
    assert taken(turns, 4, HIGH).admitted
    assert not taken(turns, 1, LOW).admitted and not large.admitted
    assert turns.end(first) == (), "the large one still has no room, and nobody of its own priority or below overtakes it"


def test_only_routers_say_which_place_a_request_has() -> None:
    credential = routing.group_credential(b"1" * 32, "default", "tiny", "u", 0, 1)
    router = RouterPlan(key_id="0" * 16, digest=routing.credential_digest(credential))
    turn = {routed.TURN: routed.turn(KeyPriority.HIGH, "key 1")}
    by_router = {"Authorization": f"Bearer {credential}"}
    place = place_of(by_router | turn, router)
    assert place.priority is KeyPriority.HIGH and place.caller_id and "key 1" not in place.caller_id
    assert place == place_of(by_router | turn, router) != place_of(by_router | {routed.TURN: "High," + "0" * 16}, router)
    assert place_of(by_router, router) == ANYONE
    for headers in (turn, {"Authorization": "Bearer sk-1"} | turn, {"Authorization": credential} | turn):
        assert place_of(headers, router) == ANYONE
    assert place_of(by_router | turn, None) == ANYONE
    for odd in ("", "High", "Highest," + "0" * 16, "High," + "0" * 17, "High,\udc80", ",", "High,x,y"):
        assert place_of(by_router | {routed.TURN: odd}, router) == ANYONE


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.integers(0, 9), st.sampled_from((ANYONE, HIGH, LOW)))))
def test_limits_hold_and_no_room_is_left_unused(steps: list[tuple[int, bool, int, Place]]) -> None:
    turns, known = Turns(budget=10, slots=3, queue=4), list[Turn]()
    for tokens, ends, which, place in steps:
        if ends and known:
            turns.end(known.pop(which % len(known)))
        elif (turn := turns.ask(tokens, place)) is not None:
            known.append(turn)
        running = [turn for turn in known if turn.admitted]
        waiting = [turn for turn in known if not turn.admitted]
        assert (turns.running, turns.waiting) == (len(running), len(waiting))
        used = sum(turn.tokens for turn in running)
        assert used <= 10 and len(running) <= 3 and len(waiting) <= 4
        order = [KeyPriority.HIGH, KeyPriority.NORMAL, KeyPriority.LOW]
        following = min(waiting, key=lambda turn: order.index(turn.priority), default=None)
        assert following is None or len(running) == 3 or used + following.tokens > 10

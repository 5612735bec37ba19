"""Which requests run and which wait."""

from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_runner.api.http.turns import Turn, Turns


def taken(turns: Turns, tokens: int) -> Turn:
    turn = turns.ask(tokens)
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


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans(), st.integers(0, 9)), max_size=40))
def test_limits_hold_and_no_room_is_left_unused(steps: list[tuple[int, bool, int]]) -> None:
    turns, known = Turns(budget=10, slots=3, queue=4), list[Turn]()
    for tokens, ends, which in steps:
        if ends and known:
            turns.end(known.pop(which % len(known)))
        elif (turn := turns.ask(tokens)) is not None:
            known.append(turn)
        running = [turn for turn in known if turn.admitted]
        waiting = [turn for turn in known if not turn.admitted]
        assert (turns.running, turns.waiting) == (len(running), len(waiting))
        used = sum(turn.tokens for turn in running)
        assert used <= 10 and len(running) <= 3 and len(waiting) <= 4
        assert not waiting or len(running) == 3 or used + waiting[0].tokens > 10

"""Who holds how much of what all callers share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_lib.httpapi.shares import Full, Scope, Shares


@pytest.mark.parametrize(
    ("held", "caller", "known", "scope"),
    [
        ([("a", 4, True)], "a", True, Scope.CALLER),
        ([("a", 4, True), ("b", 4, True), ("c", 2, True)], "d", True, Scope.ALL),
        ([("a", 3, False), ("b", 2, False)], "c", False, Scope.STRANGERS),
    ],
)
def test_limits(held: list[tuple[str, int, bool]], caller: str, known: bool, scope: Scope) -> None:
    shares = Shares(10, 4, 5)
    for name, amount, is_known in held:
        shares.take(name, amount, known=is_known)
    with pytest.raises(Full) as error:
        shares.take(caller, 1, known=known)
    assert error.value.scope is scope
    before = shares.held
    shares.give_back(held[0][0], 1, known=held[0][2])
    shares.take(caller, 1, known=known)
    assert shares.held == before


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.booleans()), max_size=40))
def test_no_limit_is_ever_exceeded_and_all_is_given_back(asked: list[tuple[str, int, bool]]) -> None:
    shares, taken = Shares(10, 4, 5), list[tuple[str, int, bool]]()
    for name, amount, known in asked:
        try:
            shares.take(name, amount, known=known)
        except Full:
            continue
        taken.append((name, amount, known))
        assert shares.held == sum(amount for _, amount, _ in taken) <= 10
        assert all(sum(amount for one, amount, _ in taken if one == name) <= 4 for name in "abc")
        assert sum(amount for _, amount, is_known in taken if not is_known) <= 5
    for name, amount, known in taken:
        shares.give_back(name, amount, known=known)
    assert shares.held == 0
    shares.take("a", 4)
    shares.take("b", 4)

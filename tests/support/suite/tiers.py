"""Which cases of a test `make test` runs. The others have the marker ``soak`` and run in `make soak` (`make matrices`)."""

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet


def quick(few: Iterable[object], cases: Iterable[object]) -> list[ParameterSet]:
    """Parameters of all ``cases``; only the ``few`` run in `make test`. A case with several values is a tuple.

    For matrices only: one of the few must fail on every fault that another case would find. Raises ValueError when one of
    the few is not a case, which may be after a change of the cases.
    """
    few, cases = list(few), list(cases)
    if unknown := [case for case in few if case not in cases]:
        raise ValueError(f"no cases: {unknown}")
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=() if case in few else pytest.mark.soak)
        for case in cases
    ]

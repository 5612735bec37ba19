"""The vocabulary of reasons: complete, unambiguous, and accepted by the schema."""

from __future__ import annotations

import re

import pytest
from thunderfleet_crds.reasons import EVENT, FAILURE, REFUSAL, Reason
from thunderfleet_crds.vocabulary import ConditionType


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_says_what_it_means_and_where_it_appears(reason: Reason) -> None:
    assert re.fullmatch(r"[A-Z][A-Za-z0-9]{1,63}", reason.value)
    assert reason.meaning.endswith(".")
    assert reason.remedy == "" or reason.remedy.endswith(".")
    assert reason.where
    assert set(reason.where) <= {*ConditionType, FAILURE, EVENT, REFUSAL}


def test_a_reason_is_its_word() -> None:
    assert Reason("NoRoom") is Reason.NO_ROOM
    text: str = Reason.NO_ROOM
    assert (text, f"{text}", Reason.NO_ROOM.value) == ("NoRoom", "NoRoom", "NoRoom")
    with pytest.raises(ValueError, match="'NoSuchReason' is not a valid Reason"):
        Reason("NoSuchReason")


def test_every_condition_has_reasons() -> None:
    assert {place for reason in Reason for place in reason.where} == {*ConditionType, FAILURE, EVENT, REFUSAL}

"""The vocabulary of reasons: complete, unambiguous, and accepted by the schema."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_crds.reasons import EVENT, FAILURE, REFUSAL, Reason
from thunderfleet_crds.vocabulary import ConditionType

from tests.support import yamltext


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_says_what_it_means_and_where_it_appears(reason: Reason) -> None:
    assert re.fullmatch(r"[A-Z][A-Za-z0-9]{1,63}", reason.value)
    assert reason.meaning.endswith(".")
    assert reason.remedy == "" or reason.remedy.endswith(".")
    assert reason.where
    assert set(reason.where) <= {*ConditionType, FAILURE, EVENT, REFUSAL}


NO_FAULT = {
    "AsExpected", "Asleep", "BothEnds", "Complete", "Connected", "Fetched", "Formed", "Found", "Fresh", "Measured", "Moved",
    "NoMembers", "Placed", "Quantized", "Ready", "Rebooted", "Resolved", "Scaled", "ScaledToZero", "Suspended", "Synchronized",
    "Usable", "Verified",
}  # fmt: skip


@pytest.mark.parametrize("reason", list(Reason))
def test_every_fault_has_a_remedy_of_its_own(reason: Reason) -> None:
    assert bool(reason.remedy) != (reason in NO_FAULT)
    assert not re.match(r"See the|Read the message|Check the message", reason.remedy)


def fields(schema: dict[str, Any], path: str) -> Iterator[str]:
    yield path
    item = schema.get("items", schema)
    for name, below in item.get("properties", {}).items():
        yield from fields(below, f"{path}.{name}")


def keys(values: dict[str, Any], path: str) -> Iterator[str]:
    for name, below in values.items():
        yield f"{path}{name}"
        if isinstance(below, dict):
            yield from keys(below, f"{path}{name}.")


def test_remedies_name_fields_and_values_that_exist() -> None:
    root = Path(__file__).parents[3]
    known: set[str] = set(keys(yamltext.load((root / "charts/thunderfleet/values.yaml").read_text()), ""))
    for path in (root / "crds").glob("thunderfleet.io_*.yaml"):
        for name, schema in yamltext.load(path.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"][
            "properties"
        ].items():
            known.update(fields(schema, name))
    named = {found for reason in Reason for found in re.findall(r"\b(?:spec|status|agent|operator)(?:\.\w+)+", reason.remedy)}
    assert {"spec.nodes.min", "status.unplaceable", "agent.modelFolders"} <= named
    assert named <= known


def test_a_reason_is_its_word() -> None:
    assert Reason("NoRoom") is Reason.NO_ROOM
    text: str = Reason.NO_ROOM
    assert (text, f"{text}", Reason.NO_ROOM.value) == ("NoRoom", "NoRoom", "NoRoom")
    with pytest.raises(ValueError, match="'NoSuchReason' is not a valid Reason"):
        Reason("NoSuchReason")


def test_every_condition_has_reasons() -> None:
    assert {place for reason in Reason for place in reason.where} == {*ConditionType, FAILURE, EVENT, REFUSAL}


# Calls that take a reason.
REASONED = {"Fault", "Verdict", "Resolution", "Blocked", "Unplaceable", "_failure", "_rule", "Refusal", "Occurrence"}
PROGRAMS = ("operator", "node-agent", "runner")


def literal_reasons(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in REASONED:
            values = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "reason")]
            texts = (value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str))
            yield from (text for text in texts if re.fullmatch(r"[A-Z][A-Za-z0-9]+", text))


def test_programs_take_reasons_from_the_vocabulary() -> None:
    assert list(literal_reasons('Fault(kind, "NoRoom", "text"); Refusal(reason="Own", message="Text"); other("NoRoom")')) == [
        "NoRoom",
        "Own",
    ]
    root = Path(__file__).parents[3]
    sources = [path for program in PROGRAMS for path in (root / program).rglob("*.py")]
    assert len(sources) > 100
    found = {str(path): words for path in sources if (words := list(literal_reasons(path.read_text())))}
    assert found == {}

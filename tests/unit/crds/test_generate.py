"""The CRDs are what the models say, and nothing that the API server refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field
from thunderfleet_crds import generate
from thunderfleet_crds.meta.apimodel import ApiModel

from tests.support import yamltext

Json = dict[str, Any]
Walk = Callable[[Json, str], Iterator[tuple[str, Json]]]

NAMES = [kind.name for kind in generate.KINDS]
STRUCTURAL = {
    *("type", "description", "properties", "required", "items", "additionalProperties", "default", "format", "enum"),
    *("minimum", "maximum", "minLength", "maxLength", "pattern", "maxItems", "maxProperties"),
    *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-validations"),
}


def test_the_repository_holds_what_the_models_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().err


def test_check_names_stale_files_and_writing_mends_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tmp_path / "crds"), "--chart", str(tmp_path / "chart")]
    assert generate.main([*arguments, "--check"]) == 1
    assert "thunderfleet.io_nodeprofiles.yaml is out of date: run `make crds`" in capsys.readouterr().err
    assert generate.main(arguments) == 0
    assert generate.main([*arguments, "--check"]) == 0
    template = tmp_path / "chart/templates/crds/thunderfleet.io_modeldeployments.yaml"
    template.write_text(template.read_text().replace("maximum: 64", "maximum: 65", 1))
    assert generate.main([*arguments, "--check"]) == 1
    assert str(template) in capsys.readouterr().err


def test_bad_usage_is_exit_code_2() -> None:
    with pytest.raises(SystemExit) as stopped:
        generate.main(["--no-such-option"])
    assert stopped.value.code == 2


@pytest.mark.parametrize("name", NAMES)
def test_every_node_is_structural_and_bounded(name: str, schemas: dict[str, Json], nodes: Walk) -> None:
    for path, node in nodes(schemas[name], name):
        assert set(node) <= STRUCTURAL, f"{path}: {sorted(set(node) - STRUCTURAL)}"
        assert node["type"] in {"string", "integer", "boolean", "array", "object"}, path
        if path in {f"{name}.apiVersion", f"{name}.kind", f"{name}.metadata"}:
            continue
        if node["type"] == "string":
            bounded = "maxLength" in node or "enum" in node or node.get("format") == "date-time"
            assert bounded, f"{path}: give the string a length, such as a type of crds/thunderfleet_crds/meta/fields.py"
        if node["type"] == "integer":
            how = f"{path}: give the integer bounds, such as a type of crds/thunderfleet_crds/meta/fields.py"
            assert node.get("minimum", -1) >= 0 and node.get("format") in {"int32", "int64"}, how
        if node["type"] == "array":
            assert "maxItems" in node, f"{path}: give the list a max_length"
            assert node["x-kubernetes-list-type"] in {"map", "atomic"}, path
            for key in node.get("x-kubernetes-list-map-keys", ()):
                assert key in node["items"]["required"], path
                assert node["items"]["properties"][key]["type"] in {"string", "integer", "boolean"}, path
        if "additionalProperties" in node:
            assert "maxProperties" in node, path
        if not path.endswith(("[]", ".*")):
            assert node.get("description"), f"{path} has no description"
            assert "\n" not in node["description"], path


@pytest.mark.parametrize("name", NAMES)
def test_rules_are_sentences(name: str, schemas: dict[str, Json], nodes: Walk) -> None:
    for path, node in nodes(schemas[name], name):
        for rule in node.get("x-kubernetes-validations", ()):
            assert set(rule) == {"rule", "message"}, path
            assert len(rule["message"].split()) >= 5, path
            assert "\n" not in rule["message"], path


@pytest.mark.parametrize("kind", generate.KINDS, ids=NAMES)
def test_columns_show_fields_that_exist(kind: generate.Kind, schemas: dict[str, Json]) -> None:
    for column in kind.columns:
        if column.json_path.startswith(".metadata.") or "[?(" in column.json_path:
            continue
        node = schemas[kind.name]
        for part in column.json_path.removeprefix(".").split("."):
            node = node["properties"][part]
        assert node["type"] == column.type, column.name


def test_columns_of_kubectl_get() -> None:
    shown = {kind.short_name: [column.name.upper() for column in kind.columns if not column.wide] for kind in generate.KINDS}
    assert {name: " ".join(columns) for name, columns in shown.items()} == {
        "np": "CHIP MEMORY MACOS RDMA LINKS TFLOPS GB/S AGE",
        "tbl": "A B SPEED GENERATION RDMA GBPS RTT AGE",
        "md": "MODEL READY NODES TRANSPORT TOK/S STATUS AGE",
        "mc": "REPOSITORY SIZE COPIES PROGRESS STATUS AGE",
    }, "people and scripts read these columns: name a change in CHANGELOG.md, then change this list"


@pytest.mark.parametrize("name", NAMES)
def test_status_has_no_defaults(name: str, schemas: dict[str, Json], nodes: Walk) -> None:
    found = [
        (path, node["default"]) for path, node in nodes(schemas[name]["properties"]["status"], "status") if "default" in node
    ]
    observes = "observedGeneration" in schemas[name]["properties"]["status"]["properties"]
    assert found == ([("status", {"observedGeneration": 0})] if observes else []), "a new object has not been observed"


def test_what_several_writers_share_is_keyed(schemas: dict[str, Json]) -> None:
    def keys(kind: str, *path: str) -> Any:
        node = schemas[kind]["properties"]["status"]
        for part in path:
            node = node["properties"][part]
        return node["x-kubernetes-list-map-keys"]

    assert keys("NodeProfile", "network", "interfaces") == ["name"]
    assert keys("NodeProfile", "thunderbolt", "ports") == ["receptacle"]
    assert keys("NodeProfile", "reachability") == ["node", "address"]
    assert keys("NodeProfile", "models") == ["path"]
    assert keys("ThunderboltLink", "endpoints") == ["node"]
    assert keys("ThunderboltLink", "measurements") == ["from", "to", "transport"]
    assert keys("ModelDeployment", "groups") == ["index"]
    for name in NAMES:
        assert keys(name, "conditions") == ["type"]


@pytest.mark.parametrize("kind", generate.KINDS, ids=NAMES)
def test_templates_are_the_crd_and_are_kept(kind: generate.Kind) -> None:
    document = generate.crd(kind)
    template = yamltext.load(generate.as_template(document))
    assert template["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert template == document == yamltext.load(generate.to_yaml(document))


def test_templates_escape_what_helm_would_read() -> None:
    text = generate.as_template({"metadata": {"name": "x"}, "description": "a {{ b }} c"})
    assert 'a {{ "{{" }} b }} c' in text


class Choice(ApiModel):
    """A field of two types."""

    value: int | str = Field(description="Either.")


class Decimals(ApiModel):
    """A float."""

    value: float = Field(description="A float.")


class Key(ApiModel):
    """An entry whose key may be missing."""

    name: str = Field(default="", description="The key.")


class Keyed(ApiModel):
    """A keyed list with an optional key."""

    value: tuple[Key, ...] = Field(description="A list.", json_schema_extra={"x-list-keys": ["name"]})


class Unsaid(ApiModel):
    """A constraint that the subset cannot express."""

    value: int = Field(description="An even number.", multiple_of=2)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (Choice, "spec.value: a CRD field has one type"),
        (Decimals, "spec.value: a CRD field is a string, integer"),
        (Keyed, "spec.value: list keys must be required fields of the entries, unlike name"),
        (Unsaid, "spec.value: a CRD cannot express multipleOf"),
    ],
)
def test_what_a_crd_cannot_express_is_refused_by_name(model: type[ApiModel], sentence: str) -> None:
    source = model.model_json_schema(by_alias=True)
    with pytest.raises(generate.NotStructural, match=sentence):
        generate.lower(source, source.get("$defs", {}), "spec", defaults=True)


class Exclusive(ApiModel):
    """Exclusive bounds."""

    value: int | None = Field(default=None, gt=0, lt=10, description="Between.")


def test_exclusive_bounds_and_null_are_lowered() -> None:
    source = Exclusive.model_json_schema(by_alias=True)
    lowered = generate.lower(source, {}, "spec", defaults=True)
    assert lowered["properties"]["value"] == {
        "description": "Between.",
        "type": "integer",
        "format": "int32",
        "minimum": 1,
        "maximum": 9,
    }
    assert "required" not in lowered

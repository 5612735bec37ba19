"""Generates the CustomResourceDefinitions from the models: into ``crds/`` and, as Helm templates, into the chart.

The API server accepts a structural subset of JSON schema. So references are inlined, ``anyOf`` with null disappears, exclusive
bounds become inclusive, and list keys and CEL rules come from ``x-`` entries on the fields. Anything that the subset cannot
express is an error here instead of at ``kubectl apply``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from thunderfleet_crds import names
from thunderfleet_crds.kinds.modelcache import ModelCache
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.meta.apimodel import ApiModel

Json = dict[str, Any]

HEADER: Final = "# Generated from crds/thunderfleet_crds by `python -m thunderfleet_crds.generate`; do not edit.\n"
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
# Keywords of JSON schema that are copied as they are.
_KEPT: Final = (
    "type",
    "format",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "maxItems",
    "minItems",
    "maxProperties",
)
_HANDLED: Final = frozenset(
    {*_KEPT, "$ref", "$defs", "anyOf", "title", "description", "default", "properties", "required", "items"}
    | {"additionalProperties", "propertyNames", "exclusiveMinimum", "exclusiveMaximum"}
    | {"x-list-keys", "x-rule", "x-message", "x-rules"}
)
_TYPE_META: Final[Mapping[str, Json]] = {
    "apiVersion": {"description": "Version of the schema of this object.", "type": "string"},
    "kind": {"description": "Kind of this object.", "type": "string"},
    # The API server describes metadata itself and refuses a CRD that does.
    "metadata": {"type": "object"},
}


@dataclass(frozen=True)
class Column:
    """One column of ``kubectl get``."""

    name: str
    json_path: str
    type: str = "string"
    wide: bool = False
    """Shown by ``-o wide`` only."""


@dataclass(frozen=True)
class Kind:
    """A kind of the API: its model and the parts of its CRD beside the schema."""

    model: type[ApiModel]
    name: str
    plural: str
    short_name: str
    scope: str
    columns: tuple[Column, ...]
    scale: bool = False
    selectable: tuple[str, ...] = ()
    """Fields that field selectors may name, in addition to the name and the namespace."""


_AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")

KINDS: Final = (
    Kind(
        model=NodeProfile,
        name=names.NODEPROFILE_KIND,
        plural=names.NODEPROFILE_PLURAL,
        short_name="np",
        scope="Cluster",
        columns=(
            Column("CHIP", ".status.hardware.chip"),
            Column("MEMORY", ".status.hardware.memory"),
            Column("MACOS", ".status.os.version"),
            Column("RDMA", ".status.rdma.state"),
            Column("LINKS", ".status.thunderbolt.links", "integer"),
            Column("TFLOPS", ".status.benchmarks.tflops"),
            Column("GB/S", ".status.benchmarks.gigabytesPerSecond"),
            Column("CLOCK", '.status.conditions[?(@.type=="ClockSynchronized")].reason', wide=True),
            _AGE,
        ),
    ),
    Kind(
        model=ThunderboltLink,
        name=names.THUNDERBOLTLINK_KIND,
        plural=names.THUNDERBOLTLINK_PLURAL,
        short_name="tbl",
        scope="Cluster",
        columns=(
            Column("A", ".spec.a.node"),
            Column("B", ".spec.b.node"),
            Column("SPEED", ".status.speed"),
            Column("GENERATION", ".status.generation"),
            Column("RDMA", ".status.rdma"),
            Column("GBPS", ".status.gbps"),
            Column("RTT", ".status.rtt"),
            _AGE,
        ),
        selectable=names.FIELDS_END,
    ),
    Kind(
        model=ModelDeployment,
        name=names.MODELDEPLOYMENT_KIND,
        plural=names.MODELDEPLOYMENT_PLURAL,
        short_name="md",
        scope="Namespaced",
        columns=(
            Column("MODEL", ".status.model"),
            Column("READY", ".status.ready"),
            Column("NODES", ".status.nodes"),
            Column("TRANSPORT", ".status.transport"),
            Column("TOK/S", ".status.tokensPerSecond"),
            Column("STATUS", '.status.conditions[?(@.type=="Ready")].reason'),
            _AGE,
            Column("WEIGHTS", ".status.weights", wide=True),
            Column("MESSAGE", '.status.conditions[?(@.type=="Ready")].message', wide=True),
        ),
        scale=True,
    ),
    Kind(
        model=ModelCache,
        name=names.MODELCACHE_KIND,
        plural=names.MODELCACHE_PLURAL,
        short_name="mc",
        scope="Namespaced",
        columns=(
            Column("REPOSITORY", ".spec.repository"),
            Column("SIZE", ".status.size"),
            Column("COPIES", ".status.copies"),
            Column("PROGRESS", ".status.progress"),
            Column("STATUS", '.status.conditions[?(@.type=="Fetched")].reason'),
            _AGE,
            Column("COMMIT", ".status.commit", wide=True),
            Column("URI", ".spec.uri", wide=True),
            Column("MESSAGE", '.status.conditions[?(@.type=="Fetched")].message', wide=True),
        ),
    ),
)


class NotStructural(ValueError):
    """A model uses something that a CRD cannot express; the message names the field."""


def lower(node: Mapping[str, Any], definitions: Mapping[str, Json], path: str, *, defaults: bool) -> Json:
    """The structural schema of one node of pydantic's JSON schema.

    With ``defaults`` the defaults of fields are kept, and an object with defaults gets those of its fields. Raises
    ``NotStructural``, which names ``path``, for anything that the subset cannot express.
    """
    node = _resolved(node, definitions, path)
    if unknown := sorted(set(node) - _HANDLED):
        raise NotStructural(f"{path}: a CRD cannot express {', '.join(unknown)}")
    out: Json = {}
    if text := node.get("description"):
        out["description"] = _one_line(text)
    out.update({key: node[key] for key in _KEPT if key in node})
    match node.get("type"):
        case "integer":
            _integer(node, out)
        case "array":
            _array(node, definitions, path, out)
        case "object":
            _object(node, definitions, path, out, defaults)
        case "string" | "boolean":
            pass
        case other:
            raise NotStructural(f"{path}: a CRD field is a string, integer, boolean, array or object, not {other}")
    if defaults and node.get("default") is not None and "default" not in out:
        out["default"] = node["default"]
    if rules := _rules(node):
        # The rule has a message for users; the pattern would add a second, less helpful one.
        if "x-rule" in node:
            out.pop("pattern", None)
        out["x-kubernetes-validations"] = rules
    return out


def _one_line(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _resolved(node: Mapping[str, Any], definitions: Mapping[str, Json], path: str) -> Json:
    """The node without ``$ref`` and ``anyOf`` with null; keywords beside them take precedence."""
    resolved = dict(node)
    while "$ref" in resolved or "anyOf" in resolved:
        if "$ref" in resolved:
            inner: Mapping[str, Any] = definitions[str(resolved.pop("$ref")).removeprefix("#/$defs/")]
        else:
            choices = [choice for choice in resolved.pop("anyOf") if choice.get("type") != "null"]
            if len(choices) != 1:
                raise NotStructural(f"{path}: a CRD field has one type, not a choice of {len(choices)}")
            inner = choices[0]
        resolved = {**inner, **resolved}
    return resolved


def _integer(node: Mapping[str, Any], out: Json) -> None:
    if "exclusiveMinimum" in node:
        out["minimum"] = node["exclusiveMinimum"] + 1
    if "exclusiveMaximum" in node:
        out["maximum"] = node["exclusiveMaximum"] - 1
    out["format"] = "int32" if out.get("maximum", _INT64_MAX) <= _INT32_MAX else "int64"
    # The API server reads bounds as floats, which cannot represent this one; the format implies it.
    if out.get("maximum") == _INT64_MAX:
        del out["maximum"]


def _array(node: Mapping[str, Any], definitions: Mapping[str, Json], path: str, out: Json) -> None:
    # Entries of lists have no defaults: with several field managers a default would have no owner.
    out["items"] = items = lower(node["items"], definitions, f"{path}[]", defaults=False)
    keys = node.get("x-list-keys")
    if keys is None:
        out["x-kubernetes-list-type"] = "atomic"
        return
    if missing := [key for key in keys if key not in items.get("required", ())]:
        raise NotStructural(f"{path}: list keys must be required fields of the entries, unlike {', '.join(missing)}")
    out["x-kubernetes-list-type"] = "map"
    out["x-kubernetes-list-map-keys"] = list(keys)


def _object(node: Mapping[str, Any], definitions: Mapping[str, Json], path: str, out: Json, defaults: bool) -> None:
    if isinstance(node.get("additionalProperties"), Mapping):
        out["additionalProperties"] = lower(node["additionalProperties"], definitions, f"{path}.*", defaults=False)
        return
    out["properties"] = properties = {
        name: lower(child, definitions, f"{path}.{name}", defaults=defaults)
        for name, child in node.get("properties", {}).items()
    }
    if required := node.get("required"):
        out["required"] = list(required)
    elif defaults and node.get("default") is not None:
        out["default"] = {name: child["default"] for name, child in properties.items() if "default" in child}


def _rules(node: Mapping[str, Any]) -> list[Json]:
    rules = [{"rule": entry["rule"], "message": entry["message"]} for entry in node.get("x-rules", ())]
    if "x-rule" in node:
        rules.append({"rule": node["x-rule"], "message": node["x-message"]})
    return rules


def schema(model: type[ApiModel]) -> Json:
    """The ``openAPIV3Schema`` of a kind."""
    source = model.model_json_schema(by_alias=True, mode="validation")
    definitions = source.get("$defs", {})
    properties: Json = {name: dict(value) for name, value in _TYPE_META.items()}
    for part in ("spec", "status"):
        if part in source["properties"]:
            # Fields of status have no defaults: what has not been observed stays unset.
            properties[part] = lower(source["properties"][part], definitions, part, defaults=part == "spec")
    if "observedGeneration" in properties.get("status", {}).get("properties", ()):
        # Generations begin with 1, so tools (kstatus) do not consider a new object reconciled.
        properties["status"]["default"] = {"observedGeneration": 0}
    out: Json = {"description": _one_line(source["description"]), "type": "object", "properties": properties}
    if "spec" in properties:
        out["required"] = ["spec"]
    if rules := _rules(source):
        out["x-kubernetes-validations"] = rules
    return out


def crd(kind: Kind) -> Json:
    """The CustomResourceDefinition of a kind."""
    subresources: Json = {"status": {}}
    if kind.scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short_name],
                "categories": [names.CATEGORY],
            },
            "scope": kind.scope,
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "additionalPrinterColumns": [
                        {"name": column.name, "type": column.type, "jsonPath": column.json_path}
                        | ({"priority": 1} if column.wide else {})
                        for column in kind.columns
                    ],
                    **({"selectableFields": [{"jsonPath": f".{path}"} for path in kind.selectable]} if kind.selectable else {}),
                    "schema": {"openAPIV3Schema": schema(kind.model)},
                }
            ],
        },
    }


class _Dumper(yaml.SafeDumper):
    """YAML without anchors, which not every reader of CRDs supports."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(document: Json) -> str:
    """The document as YAML in a fixed order."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    return HEADER + text


def as_template(document: Json) -> str:
    """The document as a Helm template that is upgraded with the release and kept when it is uninstalled."""
    kept = {
        **document,
        "metadata": {**document["metadata"], "annotations": {"helm.sh/resource-policy": "keep"}},
    }
    return to_yaml(kept).replace("{{", '{{ "{{" }}')


def files(folder: Path, chart: Path | None) -> Iterator[tuple[Path, str]]:
    """Path and content of every generated file."""
    for kind in KINDS:
        document = crd(kind)
        name = f"{names.GROUP}_{kind.plural}.yaml"
        yield folder / name, to_yaml(document)
        if chart is not None:
            yield chart / "templates" / "crds" / name, as_template(document)


def stale(folder: Path, chart: Path | None) -> list[Path]:
    """Generated files that are missing or out of date."""
    return [path for path, text in files(folder, chart) if not path.is_file() or path.read_text("utf-8") != text]


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Exit codes: 0 written or up to date, 1 stale (with --check), 2 usage."""
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(
        prog="python -m thunderfleet_crds.generate",
        description="Generates the CustomResourceDefinitions from the models.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("folder", nargs="?", metavar="DIR", type=Path, default=root / "crds", help="directory of the CRDs")
    parser.add_argument(
        "--chart",
        metavar="DIR",
        type=Path,
        default=root / "charts" / "thunderfleet",
        help="chart whose templates/crds are generated too",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is out of date")
    options = parser.parse_args(arguments)
    outdated = stale(options.folder, options.chart)
    if options.check:
        for path in outdated:
            print(f"{path} is out of date: run `make crds`", file=sys.stderr)
        return 1 if outdated else 0
    texts = dict(files(options.folder, options.chart))
    for path in outdated:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], "utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

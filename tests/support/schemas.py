"""Values that the API server takes for a kind of ours, made by Hypothesis from the schema in its CRD.

The rules that compare fields (``x-kubernetes-validations``) are not applied, so some values would be rejected by them.
"""

from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.support import yamltext

Json = dict[str, Any]

CRDS = Path(__file__).resolve().parents[2] / "crds"
TIMES = ("2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
MOST_ITEMS, MOST_SIGNS = 3, 40
"""Lists, maps and texts are at most this long, or as short as the schema wants them."""
RULED = {"every": st.sampled_from(["24h", "1m", "999999h999999m999999s"])}
"""Fields whose form is the subject of a rule."""
INTEGERS = {"int32": 2**31 - 1, "int64": 2**63 - 1}


@cache
def schema(plural: str) -> Json:
    """The schema of a kind, such as ``modeldeployments``."""
    crd = yamltext.load((CRDS / f"thunderfleet.io_{plural}.yaml").read_text(encoding="utf-8"))
    found: Json = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def values(of: Json) -> st.SearchStrategy[Any]:
    """Values of a schema."""
    found = _values(of)
    return st.none() | found if of.get("nullable") else found


def _values(of: Json) -> st.SearchStrategy[Any]:
    if "enum" in of:
        return st.sampled_from(of["enum"])
    if of.get("x-kubernetes-int-or-string"):
        return st.integers(-(2**31), 2**31 - 1) | _texts(of)
    match of["type"]:
        case "object":
            return _objects(of)
        case "array":
            least = int(of.get("minItems", 0))
            return st.lists(
                values(of["items"]), min_size=least, max_size=max(least, min(of.get("maxItems", MOST_ITEMS), MOST_ITEMS))
            )
        case "integer":
            bound = INTEGERS[of.get("format", "int64")]
            return st.integers(int(of.get("minimum", -bound - 1)), int(of.get("maximum", bound)))
        case "number":
            return st.floats(of.get("minimum"), of.get("maximum"), allow_nan=False, allow_infinity=False)
        case "boolean":
            return st.booleans()
        case "string":
            return _texts(of)
        case other:
            raise ValueError(f"schema of type {other}")


def _objects(of: Json) -> st.SearchStrategy[Json]:
    properties = {name: RULED[name] if name in RULED else values(one) for name, one in of.get("properties", {}).items()}
    required = set(of.get("required", ()))
    if not properties and "additionalProperties" in of:
        keys = st.text(min_size=1, max_size=MOST_SIGNS)
        return st.dictionaries(
            keys, values(of["additionalProperties"]), max_size=min(of.get("maxProperties", MOST_ITEMS), MOST_ITEMS)
        )
    return st.fixed_dictionaries(
        {name: one for name, one in properties.items() if name in required},
        optional={name: one for name, one in properties.items() if name not in required},
    )


def _texts(of: Json) -> st.SearchStrategy[str]:
    if of.get("format") == "date-time":
        return st.sampled_from(TIMES)
    least = int(of.get("minLength", 0))
    most = max(least, min(of.get("maxLength", MOST_SIGNS), MOST_SIGNS))
    if "pattern" in of:
        return st.from_regex(str(of["pattern"]), fullmatch=True).filter(lambda text: least <= len(text) <= most)
    return st.text(min_size=least, max_size=most)

"""What runbooks, pages and alerts ask for exists: commands as their programs parse them, kinds, fields, metrics and alerts.

An end-to-end test runs the commands of the runbooks on a cluster.
"""

import argparse
import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from thunderfleet_controlplane.assets import CONTROL_PLANE
from thunderfleet_crds import names
from thunderfleet_localcluster.programs import find_programs

from tests.support import runbooks, yamltext
from tests.support.runbooks import ALERTS, ROOT, TROUBLESHOOT, Command

Json = dict[str, Any]

PAGES = sorted(path for path in (ROOT / "README.md", ROOT / "SECURITY.md", *(ROOT / "docs").glob("*.md")))
METRICS = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
KUBERNETES = {
    "certificate", "clusterrolebinding", "csr", "daemonset", "deployment", "endpointslices", "events", "lease", "namespace",
    "node", "nodes", "pod", "pods", "quota", "secret", "serviceaccount", "token",
}  # fmt: skip
"""What kubectl calls the built-in kinds that pages name."""
WITH_KIND = ("get", "describe", "delete", "label", "scale", "wait", "explain", "rollout", "create", "top")


def alerts() -> dict[str, tuple[str, str]]:
    """The anchor of each alert's runbook, and its template, by name."""
    parts = re.split(r"^ +- alert: (\w+)$", ALERTS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        (anchor,) = re.findall(r'"thunderfleet\.runbook" \(list \$ "([a-z-]+)"\)', text)
        found[name] = (anchor, text)
    return found


def commands() -> list[tuple[str, Command]]:
    """Every command that pages and alerts name, with where it stands."""
    found = [(page.name, one) for page in PAGES for one in runbooks.of_page(page.read_text(encoding="utf-8"))]
    return found + [(ALERTS.name, one) for one in runbooks.of_alerts(ALERTS.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def parsers() -> dict[str, argparse.ArgumentParser]:
    """The command lines of our programs."""
    spec = importlib.util.spec_from_file_location("generate_reference", ROOT / "docs/generate_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: module._parser(path) for name, path in module.PROGRAMS.items()}


def problem(parser: argparse.ArgumentParser, found: Command, capsys: pytest.CaptureFixture[str]) -> str:
    """Why the program would refuse the command line; "" if it would not."""
    words = found.words if not found.mentioned else (*found.words, "--help")
    try:
        parser.parse_args(words)
    except SystemExit as end:
        said = capsys.readouterr().err.strip()
        return said.splitlines()[-1] if end.code else ""
    return ""


def test_what_is_read_of_a_page_and_of_an_alert() -> None:
    page = (
        "run `sudo thunderfleet doctor --fix`, or `kubectl get np`; not `doctor`\n$ kubectl get md NAME -o wide | cat  # all\n"
    )
    assert [(one.program, one.words, one.mentioned) for one in runbooks.of_page(page)] == [
        ("thunderfleet", ("doctor", "--fix"), False),
        ("kubectl", ("get", "np"), True),
        ("kubectl", ("get", "md", "NAME", "-o", "wide"), False),
    ]
    about = "{{ $labels.name }} -n {{ $labels.namespace }}"
    alert = f"See kubectl thunderfleet why {about}. Run sudo thunderfleet init on {{{{ $labels.node }}}}, which helps"
    assert [(one.program, one.words) for one in runbooks.of_alerts(alert)] == [
        ("thunderfleet", ("why", "NAME", "-n", "NAMESPACE")),
        ("thunderfleet", ("init",)),
    ]


@pytest.mark.parametrize(
    "wrong",
    ["thunderfleet whyy NAME", "thunderfleet why NAME --every", "thunderfleet logs NAME --tail x", "thunderfleet model lst -A"],
)
def test_the_check_of_command_lines_sees_mistakes(
    parsers: dict[str, argparse.ArgumentParser], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = runbooks.command(wrong)
    assert found is not None and problem(parsers["thunderfleet"], found, capsys)


def test_our_programs_parse_every_command_line(
    parsers: dict[str, argparse.ArgumentParser], capsys: pytest.CaptureFixture[str]
) -> None:
    ours = [(where, one) for where, one in commands() if one.program != "kubectl" and "…" not in one.text]
    assert len(ours) > 100
    refused = [(where, one.text, why) for where, one in ours if (why := problem(parsers[one.program], one, capsys))]
    assert not refused


def test_kubectl_parses_every_command_line() -> None:
    """Its own parser: with ``--help`` it only says how to use a command, and still refuses options that it does not have."""
    kubectl = str(find_programs(lambda event: None, CONTROL_PLANE) / "kubectl")

    # To collect garbage takes a third of its time, and it ends soon.
    environment = {**os.environ, "GOGC": "off"}

    def refused(*words: str) -> str:
        command = [kubectl, *words, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
        return done.stderr if done.returncode else ""

    assert refused("gett", "md") and refused("get", "md", "--wide")
    theirs = {one.words for _, one in commands() if one.program == "kubectl" and one.words}
    assert len(theirs) > 50
    wrong = {words: why for words in sorted(theirs) if (why := refused(*words))}
    assert not wrong


def test_the_shell_removes_no_backslash_that_a_command_needs() -> None:
    """Without quotes, kubectl would look for the field ``io`` of ``thunderfleet`` instead of an annotation."""
    unquoted = [(where, one.text, re.sub(r"'[^']*'", "", one.text)) for where, one in commands()]
    assert [(where, text) for where, text, rest in unquoted if re.search(r"\\\S", rest)] == []


def crds() -> dict[str, Json]:
    """The schema of each kind of ours, by all of its names."""
    found = {}
    for path in (ROOT / "crds").glob("thunderfleet.io_*.yaml"):
        crd = yamltext.load(path.read_text(encoding="utf-8"))
        called = crd["spec"]["names"]
        for name in (called["plural"], called["singular"], *called.get("shortNames", ())):
            found[name] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def kinds(words: tuple[str, ...]) -> list[str]:
    """The kinds that a command of kubectl is about."""
    plain = [word for before, word in zip(("", *words), words, strict=False) if before[:1] != "-" or "=" in before]
    plain = [word for word in plain if not word.startswith("-")]
    if not plain or plain[0] not in WITH_KIND or len(plain) < 2:
        return []
    at = 2 if plain[0] == "rollout" else 1
    return [kind.partition("/")[0].partition(".")[0] for kind in plain[at].split(",")] if len(plain) > at else []


def test_the_kinds_in_commands_of_kubectl_exist() -> None:
    known = KUBERNETES | crds().keys()
    theirs = [(where, one) for where, one in commands() if one.program == "kubectl"]
    named = [(where, kind, one.text) for where, one in theirs for kind in kinds(one.words)]
    assert {"md", "np", "tbl", "mc"} <= {kind for _, kind, _ in named}
    assert [entry for entry in named if entry[1] not in known] == []


def fields(schema: Json, path: str) -> Iterator[str]:
    """The parts of a path of kubectl that the schema does not have."""
    for name in re.findall(r"[A-Za-z]+", re.sub(r"\[[^\]]*\]", "", path)):
        if schema.get("type") == "array":
            schema = schema["items"]
        if "additionalProperties" in schema:
            return
        if name not in schema.get("properties", {}):
            yield name
            return
        schema = schema["properties"][name]


def test_the_fields_in_commands_of_kubectl_exist() -> None:
    """It prints nothing, and no error, for a field that does not exist."""
    schemas, seen, wrong = crds(), 0, []
    assert list(fields(schemas["md"], ".status.groups[*].reasons")) == ["reasons"]
    for where, one in commands():
        about = [kind for kind in kinds(one.words) if kind in schemas] if one.program == "kubectl" else []
        for path in re.findall(r"\.((?:spec|status)\.[A-Za-z.\[\]*]+)", one.text) if about else ():
            seen += 1
            wrong += [(where, one.text, name) for name in fields(schemas[about[0]], path)]
    assert seen > 8
    assert not wrong


def test_the_labels_in_commands_of_kubectl_exist() -> None:
    chart = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "charts/thunderfleet/templates").glob("*.*"))
    components = {f"app.kubernetes.io/component={name}" for name in re.findall(r'"component" "([a-z-]+)"', chart)}
    known = {*components, f"{names.LABEL_DEPLOYMENT}=NAME", "node-role.kubernetes.io/control-plane"}
    known.add("endpointslice.kubernetes.io/managed-by=thunderfleet-operator")
    used = {
        (where, word)
        for where, one in commands()
        for before, word in zip(one.words, one.words[1:], strict=False)
        if before == "-l"
    }
    assert len(used) > 5
    assert [entry for entry in used if entry[1] not in known] == []


def test_metrics_in_pages_exist() -> None:
    known = set(re.findall(r"^\| `(\w+)` \|", METRICS, re.MULTILINE))
    packages = {path.name for path in ROOT.glob("*/thunderfleet_*")}
    named = {
        (page.name, re.sub(r"_(?:bucket|sum|count)$", "", name))
        for page in PAGES
        for name in re.findall(r"\bthunderfleet_[a-z_]+[a-z]\b(?!\.)", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert [entry for entry in named if entry[1] not in known | packages] == []


def test_alerts_in_pages_exist() -> None:
    named = {
        (page.name, name)
        for page in PAGES
        for name in re.findall(r"`(Thunderfleet[A-Z]\w+)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert [entry for entry in named if entry[1] not in alerts()] == []


def test_the_runbook_of_an_alert_names_it() -> None:
    """Who follows the link of an alert finds its row there."""
    parts = runbooks.sections(TROUBLESHOOT.read_text(encoding="utf-8"))
    assert [name for name, (anchor, _) in alerts().items() if f"`{name}`" not in parts[anchor]] == []

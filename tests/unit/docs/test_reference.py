"""The pages of docs/reference are what the code says now, and links between pages lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from thunderfleet_lib.httpapi.paths import POSTS

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(path for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "runner/README.md"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))


def test_the_reference_is_current() -> None:
    command = [sys.executable, str(ROOT / "docs/generate_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, f"{done.stderr}\nrun: make docs"


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in found}


def broken_links(page: Path) -> list[str]:
    """Links to files, and to headings of pages, that do not exist."""
    found = []
    for name, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8")):
        target = page.parent / name if name else page
        if "://" in name:
            continue
        if not target.exists() or (heading and target.suffix == ".md" and heading not in headings(target)):
            found.append(f"{name}#{heading}")
    return found


def test_the_check_of_links_sees_files_and_headings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b`, c\n```sh\n# no\n```\n[1](#a-b-c) [2](page.md#a-b-c) [3](#no) [4](gone.md) [5](https://a.b/#c)\n")
    assert broken_links(page) == ["#no", "gone.md#"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    assert not broken_links(page)


def test_every_reason_has_a_row_and_every_program_a_section() -> None:
    from thunderfleet_crds.reasons import Reason

    reasons = (ROOT / "docs/reference/reasons.md").read_text(encoding="utf-8")
    assert [reason for reason in Reason if f"| `{reason}` |" not in reasons] == [], "run: make docs"
    commands = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    programs = ("thunderfleet", *(f"thunderfleet-{name}" for name in ("operator", "agent", "kubelet", "runner")))
    assert all(f"\n## {program}\n" in commands for program in programs)


def test_the_pages_name_every_path_of_the_models_api() -> None:
    clients, security = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("clients.md", "security.md"))
    for path in POSTS:
        assert f"`{path}`" in clients, f"add {path} to the table of paths in docs/clients.md"
        assert path.startswith("/v1/") or f"`{path}`" in security, f"add {path} to the ports in docs/security.md"


PROGRAM = "(thunderfleet(?:-(?:operator|agent|kubelet|runner))?)"


def sections(page: str) -> dict[str, str]:
    """The help of every program and subcommand in docs/reference/commands.md, by its name."""
    return {
        found[1]: found[2]
        for found in re.finditer(r"^##+ (thunderfleet[a-z -]*)$(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL)
    }


def commands(page: str) -> list[tuple[str, list[str]]]:
    """Program with subcommand, and options, of every command in code: in backquotes, or after a prompt."""
    code = re.findall(r"`([^`\n]+)`|^\$ (.+)$", page, re.MULTILINE)
    found = []
    for text in (one or other for one, other in code):
        for program, command, rest in re.findall(
            rf"(?:^|[ /|]){PROGRAM} ((?:(?:local|token|model) )?[a-z][a-z-]*)(?!\S)([^#|]*)", text
        ):
            found.append((f"{program} {command}", re.findall(r"(?<!\S)--[a-z-]+", rest)))
    return found


def lines_of(workflow: str) -> str:
    """The lines of a workflow as if they were typed."""
    lines = (line.strip().removeprefix("- run: ").replace('"', "") for line in workflow.splitlines())
    return "\n".join(f"$ {line}" for line in lines)


def test_the_check_of_commands_sees_commands_and_options() -> None:
    text = "run `sudo thunderfleet-kubelet join --token T`\n$ thunderfleet local up --check | tee x # with --that\n"
    assert commands(text) == [("thunderfleet-kubelet join", ["--token"]), ("thunderfleet local up", ["--check"])]


def test_commands_in_pages_exist() -> None:
    known = sections((ROOT / "docs/reference/commands.md").read_text(encoding="utf-8"))
    assert "--keep" in known["thunderfleet demo"]
    named = [(page, *command) for page in PAGES for command in commands(page.read_text(encoding="utf-8"))]
    assert len(named) > 20
    run = [(page, *command) for page in WORKFLOWS for command in commands(lines_of(page.read_text(encoding="utf-8")))]
    assert {"thunderfleet init", "thunderfleet run", "thunderfleet reset"} <= {name for _, name, _ in run}
    wrong = [
        (page.name, name, option)
        for page, name, options in named + run
        for option in options or [""]
        if name not in known or option not in known[name]
    ]
    assert not wrong


def named(page: str) -> set[str]:
    """Fields of the API and chart values in backquotes."""
    return set(re.findall(r"`((?:spec|status|image|operator|agent|pods|dashboard|alerts|podMonitors)\.[A-Za-z.\[\]]+)`", page))


def test_the_check_of_names_sees_fields_and_values() -> None:
    assert named("set `spec.nodes.min`, `status.groups[].state` or `agent.port`, not `operator/x.py`") == {
        "spec.nodes.min",
        "status.groups[].state",
        "agent.port",
    }


def test_fields_and_chart_values_in_pages_exist() -> None:
    reference = "".join((ROOT / "docs/reference" / name).read_text(encoding="utf-8") for name in ("api.md", "chart.md"))
    known = set(re.findall(r"^\| `([^`]+)` \|", reference, re.MULTILINE))
    found = [(page.name, name) for page in PAGES for name in named(page.read_text(encoding="utf-8"))]
    assert len(found) > 50
    assert [entry for entry in found if entry[1] not in known] == []

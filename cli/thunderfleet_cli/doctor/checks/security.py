"""Application firewall, FileVault, Local Network privacy. Pure."""

import re

from thunderfleet_cli.doctor.checks.check import Answers, Argv, Check, Repair, State, printed, shown, unexpected

FIREWALL = "socketfilterfw"
FIREWALL_FOLDER = "/usr/libexec/ApplicationFirewall"
GLOBAL: Argv = (FIREWALL, "--getglobalstate")
BLOCK_ALL: Argv = (FIREWALL, "--getblockall")
FILEVAULT: Argv = ("fdesetup", "status")

PATHS = {FIREWALL: f"{FIREWALL_FOLDER}/{FIREWALL}"}
_STATE = re.compile(r"\(State = ([012])\)")
_BLOCKS = re.compile(
    r"^(?:Firewall has block all state set to|Block all) (enabled|disabled)[.!]\s*$", re.IGNORECASE | re.MULTILINE
)
_BLOCKED = re.compile(r"^Incoming connection to .* is blocked\s*$", re.MULTILINE)
_PERMITTED = re.compile(r"^Incoming connection to .* is permitted\s*$", re.MULTILINE)
_FILEVAULT = re.compile(r"FileVault is (?:On|Off)(?:\.|, but .*)")
_ABSENT = re.compile(r"^The application .*is not part of the firewall\s*$", re.MULTILINE)


def application(python: str) -> Argv:
    """Whether the firewall lets others connect to ``python``, the program of kubelet, agent and runners."""
    return (FIREWALL, "--getappblocked", python)


def firewall(answers: Answers, python: str) -> Check:
    """Whether the application firewall refuses connections from other Macs."""
    text = printed(answers, GLOBAL)
    state = _STATE.search(text)
    if state is None:
        raise unexpected(GLOBAL, text)
    if state.group(1) == "0":
        return Check("firewall", State.OK, "the application firewall is off")
    if state.group(1) == "2" or _blocks_all(answers):
        # Not repaired: the setting is a decision of the administrator, and protects more than Thunderfleet.
        fix = shown([(FIREWALL, "--setblockall", "off")], PATHS)
        return Check("firewall", State.FAILURE, "the application firewall blocks all incoming connections", fix)
    return _application(answers, python)


def _blocks_all(answers: Answers) -> bool:
    text = printed(answers, BLOCK_ALL)
    found = _BLOCKS.search(text)
    if found is None:
        raise unexpected(BLOCK_ALL, text)
    return found.group(1).lower() == "enabled"


def _application(answers: Answers, python: str) -> Check:
    asked = application(python)
    text = printed(answers, asked)
    if _PERMITTED.search(text):
        return Check("firewall", State.OK, f"the application firewall lets other Macs connect to {python}")
    unblock = (FIREWALL, "--unblockapp", python)
    if _BLOCKED.search(text):
        repair = Repair((unblock,), ((FIREWALL, "--blockapp", python),))
        finding = f"the application firewall refuses connections to {python}"
        return Check("firewall", State.FAILURE, finding, shown(repair.commands, PATHS), repair=repair)
    if _ABSENT.search(text):
        repair = Repair(((FIREWALL, "--add", python), unblock), ((FIREWALL, "--remove", python),))
        finding = f"the application firewall is on and has no rule for {python}, so it may refuse connections from other Macs"
        return Check("firewall", State.WARNING, finding, shown(repair.commands, PATHS), repair=repair)
    raise unexpected(asked, text)


def filevault(answers: Answers) -> Check:
    """Whether the Mac waits for a password when it starts."""
    text = printed(answers, FILEVAULT)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines == ["FileVault is Off."]:
        return Check("filevault", State.OK, "FileVault is off, so this Mac starts without a password")
    if _FILEVAULT.fullmatch(lines[0]):
        finding = (
            f"{' '.join(lines)} When this Mac starts, it waits for a password before its kubelet runs; "
            "to restart it once without waiting, run `sudo fdesetup authrestart`"
        )
        return Check("filevault", State.WARNING, finding)
    raise unexpected(FILEVAULT, text)


def local_network(_: Answers) -> Check:
    """A setting that no command can show, so the result is always unknown."""
    return Check(
        "local-network",
        State.UNKNOWN,
        "macOS has no command that shows whether Local Network privacy blocks connections to other Macs; if connections fail "
        "with `No route to host`, allow them in System Settings > Privacy & Security > Local Network",
    )

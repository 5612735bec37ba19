"""Sleep, restart after a loss of power, and heat. Pure."""

import re

from thunderfleet_lib.host.parsing import ParseError

from thunderfleet_cli.doctor.checks.check import Answers, Argv, Check, Repair, State, printed, shown, unexpected

CUSTOM: Argv = ("pmset", "-g", "custom")
LIVE: Argv = ("pmset", "-g")
THERM: Argv = ("pmset", "-g", "therm")
POWER = "AC Power"
BATTERY = "Battery Power"

_SECTION = re.compile(r"^(\S.*?):\s*$")
_SETTING = re.compile(r"^\s+(\S.*?)\s+(\S+)\s*$")
_SLEEP_DISABLED = re.compile(r"^\s*SleepDisabled\s+1\s*$", re.MULTILINE)
_LIMIT = re.compile(r"^\s*CPU_(?:Speed|Scheduler)_Limit\s*=\s*(\d{1,3})\s*$", re.MULTILINE)
_KNOWN = re.compile(
    r"Note: No (?:thermal warning level|performance warning level|CPU power status) has been recorded"
    r"|[\d: +-]*CPU Power notify|CPU_(?:Speed_Limit|Scheduler_Limit|Available_CPUs)\s*=\s*\d{1,3}"
)


def parse_custom(text: str) -> dict[str, dict[str, str]]:
    """The settings by source of power. Raises ParseError for a line that is neither a source nor a setting."""
    found: dict[str, dict[str, str]] = {}
    section: dict[str, str] | None = None
    for line in text.splitlines():
        if head := _SECTION.match(line):
            section = found.setdefault(head.group(1), {})
        elif (setting := _SETTING.match(line)) and section is not None:
            section[setting.group(1)] = setting.group(2)
        elif line.strip():
            raise unexpected(CUSTOM, line)
    return found


def _number(settings: dict[str, str], key: str) -> int:
    value = settings.get(key)
    if value is None:
        raise ParseError(" ".join(CUSTOM), f"shows no {key} for {POWER}")
    if not re.fullmatch(r"\d{1,9}", value):
        raise ParseError(" ".join(CUSTOM), f"shows {key} {value}, which is not a number")
    return int(value)


def _charger(answers: Answers) -> dict[str, str]:
    text = printed(answers, CUSTOM)
    sections = parse_custom(text)
    if POWER not in sections:
        raise unexpected(CUSTOM, text)
    return sections[POWER]


def _set(key: str, value: int, before: int) -> tuple[str, Repair]:
    # Only for wall power: a MacBook on battery should sleep, and undoing needs a single earlier value.
    repair = Repair((("pmset", "-c", key, str(value)),), (("pmset", "-c", key, str(before)),))
    return shown(repair.commands, {}), repair


def sleep(answers: Answers) -> Check:
    """Whether the Mac goes to sleep by itself."""
    if _SLEEP_DISABLED.search(printed(answers, LIVE)):
        return Check("sleep", State.OK, "sleep is disabled")
    minutes = _number(_charger(answers), "sleep")
    if minutes == 0:
        return Check("sleep", State.OK, "on AC power, this Mac does not sleep automatically")
    fix, repair = _set("sleep", 0, minutes)
    text = f"this Mac sleeps after {minutes} min when it runs no pods; its Node then becomes NotReady"
    return Check("sleep", State.WARNING, text, fix, repair=repair)


def restart(answers: Answers) -> Check:
    """Whether the Mac starts again when power returns."""
    sections = parse_custom(printed(answers, CUSTOM))
    if BATTERY in sections and "autorestart" not in sections.get(POWER, {}):
        return Check("restart-after-power-loss", State.OK, "this Mac has a battery, and no setting for a loss of power")
    if _number(_charger(answers), "autorestart") != 0:
        return Check("restart-after-power-loss", State.OK, "this Mac starts again after a loss of power")
    fix, repair = _set("autorestart", 1, 0)
    return Check("restart-after-power-loss", State.WARNING, "this Mac stays off after a loss of power", fix, repair=repair)


def thermal(answers: Answers) -> Check:
    """Whether macOS slows the Mac down because it is hot."""
    text = printed(answers, THERM)
    for line in text.splitlines():
        if line.strip() and not _KNOWN.fullmatch(line.strip()):
            raise unexpected(THERM, line)
    limits = [int(limit) for limit in _LIMIT.findall(text)]
    if limits and min(limits) < 100:
        how = f"macOS limits the processors to {min(limits)} % because this Mac is hot: check its fans and the flow of air"
        return Check("thermal", State.WARNING, how)
    return Check("thermal", State.OK, "macOS does not limit the processors because of heat")

"""Valid property lists of launchd: the keys that launchd.plist(5) documents for macOS 14, with the types of their values."""

import plistlib
from typing import Any

_STRINGS, _DICT = "array of strings", "dictionary"
_KEYS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("Label", "UserName", "GroupName", "Program", "BundleProgram", "RootDirectory"), (str,)),
    **dict.fromkeys(("WorkingDirectory", "StandardInPath", "StandardOutPath", "StandardErrorPath", "ProcessType"), (str,)),
    **dict.fromkeys(("Disabled", "EnableGlobbing", "EnableTransactions", "EnablePressuredExit", "OnDemand"), (bool,)),
    **dict.fromkeys(("ServiceIPC", "RunAtLoad", "InitGroups", "StartOnMount", "Debug", "WaitForDebugger"), (bool,)),
    **dict.fromkeys(("AbandonProcessGroup", "LowPriorityIO", "LowPriorityBackgroundIO", "LaunchOnlyOnce"), (bool,)),
    **dict.fromkeys(("MaterializeDatalessFiles", "SessionCreate", "LegacyTimers"), (bool,)),
    **dict.fromkeys(("HopefullyExitsLast", "HopefullyExitsFirst"), (bool,)),
    **dict.fromkeys(("TimeOut", "ExitTimeOut", "ThrottleInterval", "StartInterval", "Nice"), (int,)),
    **dict.fromkeys(("ProgramArguments", "WatchPaths", "QueueDirectories"), (_STRINGS,)),
    **dict.fromkeys(("LimitLoadToHosts", "LimitLoadFromHosts"), (_STRINGS,)),
    **dict.fromkeys(("EnvironmentVariables", "SoftResourceLimits", "HardResourceLimits", "MachServices", "Sockets"), (_DICT,)),
    **dict.fromkeys(("LaunchEvents", "inetdCompatibility", "LimitLoadToHardware", "LimitLoadFromHardware"), (_DICT,)),
    "Umask": (int, str),
    "KeepAlive": (bool, _DICT),
    "StartCalendarInterval": (_DICT, "array of dictionaries"),
    "LimitLoadToSessionType": (str, _STRINGS),
    "AssociatedBundleIdentifiers": (str, _STRINGS),
}
_LIMITS = ("Core", "CPU", "Data", "FileSize", "MemoryLock", "NumberOfFiles", "NumberOfProcesses", "ResidentSetSize", "Stack")
_PROCESS_TYPES = ("Background", "Standard", "Adaptive", "Interactive")
_KEEP_ALIVE = ("SuccessfulExit", "NetworkState", "PathState", "OtherJobEnabled", "Crashed", "AfterInitialDemand")


def problems(text: bytes, file_name: str | None = None) -> list[str]:
    """The errors of a property list for launchd, which should be in the file ``LABEL.plist``."""
    job: dict[str, Any] = plistlib.loads(text, fmt=plistlib.FMT_XML)
    found = [_key(name, value) for name, value in job.items()]
    found += [f"{name} is missing" for name in ("Label",) if name not in job]
    if "Program" not in job and not job.get("ProgramArguments"):
        found.append("Program or ProgramArguments is missing")
    elif not str(job.get("Program") or job["ProgramArguments"][0]).startswith("/"):
        found.append("the program is not an absolute path; launchd's PATH is /usr/bin:/bin:/usr/sbin:/sbin")
    found += [
        f"{name} has the unknown limit {limit}"
        for name in ("SoftResourceLimits", "HardResourceLimits")
        for limit, value in job.get(name, {}).items()
        if limit not in _LIMITS or not isinstance(value, int)
    ]
    if job.get("ProcessType", "Standard") not in _PROCESS_TYPES:
        found.append(f"ProcessType {job['ProcessType']} is not one of {', '.join(_PROCESS_TYPES)}")
    if isinstance(job.get("KeepAlive"), dict):
        found += [f"KeepAlive has the unknown condition {name}" for name in job["KeepAlive"] if name not in _KEEP_ALIVE]
    if file_name is not None and file_name != f"{job.get('Label')}.plist":
        found.append(f"the file is {file_name}, not {job.get('Label')}.plist")
    return [problem for problem in found if problem]


def _key(name: str, value: object) -> str:
    if name not in _KEYS:
        return f"{name} is not a key of launchd.plist(5)"
    if any(_is(value, kind) for kind in _KEYS[name]):
        return ""
    return f"{name} is {value!r}, not " + " or ".join(kind if isinstance(kind, str) else kind.__name__ for kind in _types(name))


def _types(name: str) -> list[Any]:
    return list(_KEYS[name])


def _is(value: object, kind: object) -> bool:
    if kind == _STRINGS:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if kind == "array of dictionaries":
        return isinstance(value, list) and all(isinstance(item, dict) for item in value)
    if kind == _DICT:
        return isinstance(value, dict)
    # bool is an int, but <true/> is no <integer>.
    return type(value) is kind

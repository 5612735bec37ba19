"""LaunchDaemons of a recorded Mac: the behaviour of launchd for property lists and for commands of launchctl.

It reads the property lists in /Library/LaunchDaemons when the Mac starts, keeps jobs alive, and answers launchctl with the exit
codes and texts of macOS 14 and newer. Standard library only, as ``launchd``; time and files are the machine's own.
"""

import contextlib
import json
import os
import pwd
import resource
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

FOLDER = "/Library/LaunchDaemons"
PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
"""PATH of launchd; commands of the recorded Mac replace those in these folders."""
THROTTLE_SECONDS, EXIT_SECONDS = 10, 20
"""launchd's defaults of ThrottleInterval and ExitTimeOut."""
NOT_PERMITTED, NO_PROCESS, IO_ERROR, IN_PROGRESS, USAGE, NOT_FOUND = 1, 3, 5, 36, 64, 113
MEANINGS = {
    NOT_PERMITTED: "Operation not permitted",
    NO_PROCESS: "No such process",
    IO_ERROR: "Input/output error",
    IN_PROGRESS: "Operation now in progress",
}


class Reply(NamedTuple):
    """Output and exit code of a call of launchctl."""

    code: int = 0
    stdout: str = ""
    stderr: str = ""


class Job:
    """One loaded job."""

    def __init__(self, path: str, spec: dict[str, Any]) -> None:
        self.path, self.spec, self.label = path, spec, str(spec["Label"])
        self.pid: int | None = None
        self.runs = 0
        self.last_exit: int | None = None
        self.started = -float("inf")
        self.start_at: float | None = None
        """When the job must be started; None: not until it is requested."""
        self.kill_at: float | None = None
        """When SIGKILL follows the earlier SIGTERM."""
        self.leaving = False

    @property
    def state(self) -> str:
        """The word that launchctl prints."""
        if self.pid is not None:
            return "SIGTERMed" if self.leaving else "running"
        return "not running" if self.start_at is None else "spawn scheduled"

    @property
    def throttle(self) -> float:
        return float(self.spec.get("ThrottleInterval", THROTTLE_SECONDS))

    @property
    def at_load(self) -> bool:
        """Whether the job starts as soon as it is loaded. A KeepAlive that depends on exit codes implies RunAtLoad."""
        alive = self.spec.get("KeepAlive", False)
        return bool(self.spec.get("RunAtLoad", False)) or alive is True or (isinstance(alive, dict) and bool(alive))

    def again(self, code: int) -> bool:
        """Whether the job is started again after it ended with ``code`` (negative: a signal)."""
        alive = self.spec.get("KeepAlive", False)
        if not isinstance(alive, dict):
            return bool(alive)
        wishes = []
        if "SuccessfulExit" in alive:
            wishes.append(bool(alive["SuccessfulExit"]) == (code == 0))
        if "Crashed" in alive:
            wishes.append(bool(alive["Crashed"]) == (code < 0))
        return any(wishes)


def read_job(path: str) -> Job | None:
    """The job in a property list; None if launchd would refuse the file because of its owner, mode or content."""
    # Most Macs of a large fleet have no property list, so a late import saves memory.
    import plistlib
    from xml.parsers.expat import ExpatError

    try:
        about = os.stat(path)
        # This process is root on its Mac.
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
            return None
        with open(path, "rb") as file:
            spec = plistlib.load(file)
    except (OSError, ValueError, ExpatError):
        return None
    arguments = spec.get("ProgramArguments", [])
    known = isinstance(spec.get("Label"), str) and isinstance(arguments, list)
    return Job(path, spec) if known and (spec.get("Program") or arguments) else None


class Jobs:
    """All jobs of the system domain. ``overrides``: the file of `launchctl enable` and `disable`."""

    def __init__(self, folder: str, overrides: str, commands: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.overrides, self.clock = folder, overrides, clock
        self.path = f"{commands}:{PATH}" if commands else PATH
        self.loaded: dict[str, Job] = {}

    def boot(self) -> None:
        """Load every property list that is not disabled."""
        with contextlib.suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.folder)):
                if name.endswith(".plist"):
                    job = read_job(os.path.join(self.folder, name))
                    if job is not None and not self._disabled(job):
                        self._load(job)
        self.tick()

    # -- time and processes ----------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Seconds until ``tick`` has work to do; None: never without another event."""
        times = [moment for job in self.loaded.values() for moment in (job.start_at, job.kill_at) if moment is not None]
        return max(0.0, min(times) - self.clock()) if times else None

    def tick(self) -> None:
        """Start and kill the processes that are due."""
        now = self.clock()
        for job in list(self.loaded.values()):
            if job.start_at is not None and now >= job.start_at:
                self._start(job)
            if job.kill_at is not None and now >= job.kill_at:
                job.kill_at = None
                self._signal(job, signal.SIGKILL)

    def exited(self, pid: int, code: int) -> None:
        """Record the end of a process."""
        job = next((one for one in self.loaded.values() if one.pid == pid), None)
        if job is None:
            return
        if not job.spec.get("AbandonProcessGroup", False):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        job.pid, job.kill_at, job.last_exit = None, None, code
        if job.leaving:
            del self.loaded[job.label]
        elif job.again(code):
            job.start_at = max(self.clock(), job.started + job.throttle)
        self.tick()

    def _load(self, job: Job) -> None:
        self.loaded[job.label] = job
        if job.at_load:
            job.start_at = self.clock()

    def _start(self, job: Job) -> None:
        job.start_at, job.started, job.runs = None, self.clock(), job.runs + 1
        try:
            job.pid = spawn(job.spec, self.path)
        except (OSError, subprocess.SubprocessError, KeyError, ValueError):
            # launchd's EX_CONFIG: the program or the account does not exist.
            job.last_exit = 78
            if job.again(78):
                job.start_at = self.clock() + job.throttle

    def _signal(self, job: Job, number: int) -> None:
        if job.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.pid, number)

    # -- launchctl -------------------------------------------------------------------------------------------------------

    def answer(self, arguments: list[str], user: int) -> Reply:
        """Execute a call of launchctl by ``user``."""
        command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
        if command == "print" and len(rest) == 1:
            return self._print(rest[0])
        if command == "print-disabled" and rest == ["system"]:
            return self._print_disabled()
        known: dict[str, Callable[[list[str]], Reply]] = {
            "bootstrap": self._bootstrap,
            "bootout": self._bootout,
            "kickstart": self._kickstart,
            "kill": self._kill,
            "enable": lambda rest: self._override(rest, False),
            "disable": lambda rest: self._override(rest, True),
        }
        if command not in known:
            return Reply(
                USAGE, "", "Usage: this recorded Mac's launchctl has " + ", ".join(["print", "print-disabled", *known]) + "\n"
            )
        if user != 0:
            return _failed("Operation", NOT_PERMITTED)
        return known[command](rest)

    def _find(self, target: str) -> Job | None:
        domain, _, name = target.partition("/")
        return self.loaded.get(name) if domain == "system" else None

    def _bootstrap(self, rest: list[str]) -> Reply:
        if len(rest) != 2 or rest[0] != "system":
            return Reply(USAGE, "", "Usage: launchctl bootstrap <domain-target> [service-path, service-path2, ...]\n")
        job = read_job(os.path.abspath(rest[1]))
        if job is None or job.label in self.loaded or self._disabled(job):
            return _failed("Bootstrap", IO_ERROR)
        self._load(job)
        self.tick()
        return Reply()

    def _bootout(self, rest: list[str]) -> Reply:
        job = self._find(rest[0]) if len(rest) == 1 else None
        if job is None:
            return _failed("Boot-out", NO_PROCESS)
        if job.leaving:
            return _failed("Boot-out", IN_PROGRESS)
        job.leaving, job.start_at = True, None
        if job.pid is None:
            del self.loaded[job.label]
            return Reply()
        # launchctl returns before the process has ended; until then, the label is in use.
        seconds = float(job.spec.get("ExitTimeOut", EXIT_SECONDS))
        job.kill_at = self.clock() + seconds if seconds > 0 else None
        self._signal(job, signal.SIGTERM)
        return Reply()

    def _kickstart(self, rest: list[str]) -> Reply:
        job = self._find(rest[-1]) if rest else None
        if job is None or job.leaving:
            return _not_found(rest[-1] if rest else "")
        if job.pid is None:
            self._start(job)
        elif "-k" in rest[:-1]:
            # The job starts again when its end is noticed.
            job.started = -float("inf")
            self._signal(job, signal.SIGKILL)
        return Reply()

    def _kill(self, rest: list[str]) -> Reply:
        job = self._find(rest[1]) if len(rest) == 2 else None
        if job is None or job.pid is None:
            return _not_found(rest[-1] if rest else "")
        name = rest[0].upper().removeprefix("SIG")
        self._signal(job, int(name) if name.isdigit() else getattr(signal, f"SIG{name}"))
        return Reply()

    def _print(self, target: str) -> Reply:
        job = self._find(target)
        if job is None:
            return _not_found(target)
        code = "(never exited)" if job.last_exit is None else str(job.last_exit)
        lines = [
            f"active count = {int(job.pid is not None)}",
            f"path = {job.path}",
            "type = LaunchDaemon",
            f"state = {job.state}",
            "",
            f"program = {program(job.spec)}",
            "arguments = {",
            *(f"\t{word}" for word in job.spec.get("ProgramArguments", [])),
            "}",
            "",
            f"minimum runtime = {job.throttle:.0f}",
            f"exit timeout = {job.spec.get('ExitTimeOut', EXIT_SECONDS)}",
            f"runs = {job.runs}",
            *([f"pid = {job.pid}"] if job.pid is not None else []),
            f"last exit code = {code}",
        ]
        return Reply(0, f"{target} = {{\n" + "".join(f"\t{line}\n" for line in lines) + "}\n")

    # -- enable and disable -----------------------------------------------------------------------------------------------

    def _overrides(self) -> dict[str, bool]:
        try:
            with open(self.overrides, encoding="utf-8") as file:
                return {str(name): bool(value) for name, value in json.load(file).items()}
        except (OSError, ValueError):
            return {}

    def _disabled(self, job: Job) -> bool:
        return self._overrides().get(job.label, bool(job.spec.get("Disabled", False)))

    def _override(self, rest: list[str], disabled: bool) -> Reply:
        domain, _, name = rest[0].partition("/") if rest else ("", "", "")
        if domain != "system" or not name:
            return Reply(USAGE, "", "Usage: launchctl enable|disable <service-target>\n")
        text = json.dumps({**self._overrides(), name: disabled})
        with open(self.overrides + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(self.overrides + ".new", self.overrides)
        return Reply()

    def _print_disabled(self) -> Reply:
        listed = "".join(
            f'\t\t"{name}" => {"disabled" if disabled else "enabled"}\n' for name, disabled in self._overrides().items()
        )
        return Reply(0, f"\tdisabled services = {{\n{listed}\t}}\n")


def _failed(what: str, number: int) -> Reply:
    return Reply(number, "", f"{what} failed: {number}: {MEANINGS[number]}\n")


def _not_found(target: str) -> Reply:
    domain, _, name = target.partition("/")
    return Reply(NOT_FOUND, "", f'Bad request.\nCould not find service "{name}" in domain for {domain}\n')


def program(spec: Mapping[str, Any]) -> str:
    """The program of a job."""
    return str(spec.get("Program") or spec["ProgramArguments"][0])


def spawn(spec: Mapping[str, Any], path: str) -> int:
    """Start a job's process, as in its property list; returns its process ID. Raises OSError, KeyError, ValueError."""
    if not os.path.isabs(program(spec)) and os.sep in program(spec):
        raise ValueError(program(spec))
    account = pwd.getpwnam(spec["UserName"]) if "UserName" in spec else None
    environment = {"PATH": path, "XPC_SERVICE_NAME": str(spec["Label"])}
    if account is not None:
        environment |= {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name, "SHELL": account.pw_shell}
    environment |= {str(name): str(value) for name, value in spec.get("EnvironmentVariables", {}).items()}
    with contextlib.ExitStack() as files:

        def opened(key: str) -> Any:
            # launchd appends, so the file can be emptied while the job runs.
            return files.enter_context(open(spec[key], "ab")) if key in spec else subprocess.DEVNULL

        process = subprocess.Popen(
            spec.get("ProgramArguments") or [program(spec)],
            executable=program(spec),
            env=environment,
            cwd=spec.get("WorkingDirectory", "/"),
            stdin=subprocess.DEVNULL,
            stdout=opened("StandardOutPath"),
            stderr=opened("StandardErrorPath"),
            start_new_session=True,
            umask=int(spec.get("Umask", 0o022)),
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[account.pw_gid] if account else None,
            preexec_fn=lambda: _prepare(spec),
        )
    # launchd's loop reaps it.
    process.returncode = 0
    return process.pid


def _prepare(spec: Mapping[str, Any]) -> None:
    """Limits and nice value of a job, in its process before it becomes the program."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = int(spec.get("SoftResourceLimits", {}).get("NumberOfFiles", soft))
    hard = int(spec.get("HardResourceLimits", {}).get("NumberOfFiles", hard))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard), hard))
    if "Nice" in spec:
        # Where this process is root on its Mac only, the machine may refuse a value below 0.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, int(spec["Nice"]))

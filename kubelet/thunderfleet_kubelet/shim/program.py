"""Becomes the container's program: user, working folder, exec."""

import errno
import os
import signal


class Program:
    """What to run. ``groups``: supplementary groups. ``nice``: its nice value, 0 for that of this process."""

    def __init__(
        self, argv: list[str], env: dict[str, str], cwd: str, uid: int | None, gid: int | None, groups: list[int], nice: int = 0
    ) -> None:
        self.argv, self.env, self.cwd, self.uid, self.gid, self.groups, self.nice = argv, env, cwd, uid, gid, groups, nice


def become(uid: int | None, gid: int | None, groups: list[int]) -> None:
    """Switches to the container's user and groups, unless they are the kubelet's own."""
    if gid is not None and (gid != os.getegid() or uid != os.geteuid()):
        os.setgroups(groups)
        os.setgid(gid)
    elif groups:
        os.setgroups(groups)
    if uid is not None and uid != os.geteuid():
        os.setuid(uid)


def prefer(nice: int) -> None:
    """Sets the nice value of this process, unless it is 0. Without root, a value below that of this process has no effect."""
    if nice:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        except PermissionError:
            return


def run_program(program: Program, out: int, err: int, report: int, stdin: int = -1, tty: bool = False) -> None:
    """Becomes the program, in the forked child, or writes the error to ``report``. Never returns.

    ``stdin``: its standard input; -1 for none. ``tty``: that is its terminal.
    """
    try:
        os.setsid()
        os.dup2(stdin if stdin >= 0 else os.open("/dev/null", os.O_RDONLY), 0)
        if tty:
            take_terminal()
        os.dup2(out, 1)
        os.dup2(err, 2)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1):
            # Python ignores SIGPIPE and SIGXFSZ, and exec keeps ignored signals ignored.
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.umask(0o022)
        prefer(program.nice)
        become(program.uid, program.gid, program.groups)
        os.chdir(program.cwd)
        execute(program.argv, program.env)
    except BaseException as error:
        os.write(report, explain(program, error).encode())
    finally:
        os._exit(128)


def take_terminal() -> None:
    """Makes standard input the terminal of this session."""
    # Imported here: most containers have no terminal.
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def execute(argv: list[str], env: dict[str, str]) -> None:
    """Becomes the program, found on the PATH in ``env``. Raises OSError.

    ``os.execvpe`` would import a module, and the container's user may not be allowed to read this Python's folder.
    """
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)
    problem: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    for folder in env.get("PATH", "").split(":"):
        try:
            os.execve(os.path.join(folder or ".", argv[0]), argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problem = error
    raise problem


def explain(program: Program, error: BaseException) -> str:
    """The message for a program that could not be started."""
    name = program.argv[0]
    if isinstance(error, FileNotFoundError):
        if not os.path.isdir(program.cwd):
            return f"working directory {program.cwd} not found"
        return f"command {name!r} not found on PATH={program.env.get('PATH', '')}"
    if isinstance(error, PermissionError):
        return f"command {name!r} cannot start as user {program.uid} in {program.cwd}: {error.strerror}"
    return f"command {name!r} cannot start: {error}"

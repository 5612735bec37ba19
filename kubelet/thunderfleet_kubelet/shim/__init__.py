"""The small process that owns one container, so that the container outlives the kubelet that started it.

Runs as ``python -I -S …/thunderfleet_kubelet/shim FOLDER`` and imports little of the standard library and nothing else: one
shim runs for every container. It leaves the kubelet's session, starts the program in its own session as the container's user,
writes the program's output to the container's log, forwards stop requests, and records the exit code. Kubelet and shim
communicate only through files in FOLDER:

- ``spec.json`` (read once): argv, env, cwd, uid, gid, groups, log, marker, ownUser, grace, logBytes, logFiles, stdin, tty.
- ``alive``: a named pipe that the shim keeps open for writing. A reader gets the end of file when the shim has ended, for
  whatever reason, even if its pid has been reused.
- ``running.json``: ``shim`` and ``pid`` (process ids), ``birth`` (of ``pid``), ``startedAt`` (seconds since the epoch).
- ``claimed``: exists as soon as a shim has taken the attempt; a second shim leaves it alone.
- ``stop``: grace period in seconds, as text; followed by SIGTERM to the shim. May be repeated with a shorter period.
- ``stdin``, ``attach``, ``size`` and ``stdin.closed``, of a container with input or a terminal: see ``console``.
- ``exit.json``: ``exitCode``, ``signal``, ``startedAt``, ``finishedAt``, ``reason``, ``message``, ``graceExceeded``. Written
  after the last line of the log, when no process of the container is left.

Every process of a container has the container's sandbox folder (``marker``) in its environment, which finds processes that
left the process group with a setsid of their own. macOS hides the environment of Apple binaries; there, descent finds them as
long as their parent lives, and ``ownUser`` afterwards: a user that no process but this container's has at the moment.

__main__   runs the shim by path, without site-packages
owner      one container from its start to its exit file
program    becomes the container's program: user, working folder, exec
console    input and raw output of a container, for kubectl attach
log        the container's log and its rotation
processes  finds and signals processes of this machine
files      writes files atomically
"""

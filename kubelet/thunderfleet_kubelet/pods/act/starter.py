"""Starts containers: prepares environment, user, mounts and sandbox, then hands over to the shim."""

from dataclasses import replace
from pathlib import Path
from typing import Literal

from thunderfleet_lib.backoff import Backoff
from thunderfleet_lib.kube import ApiError, Json

from thunderfleet_kubelet.containers.attempt import START_ERROR, Start
from thunderfleet_kubelet.containers.errors import ContainerConfigError, ImageError, StartFailed
from thunderfleet_kubelet.containers.inputs import environment, volumes
from thunderfleet_kubelet.containers.inputs.volume_content import kind_of, volumes_of
from thunderfleet_kubelet.containers.launch import Launch
from thunderfleet_kubelet.pods.act import probes
from thunderfleet_kubelet.pods.act.mounter import Mounter
from thunderfleet_kubelet.pods.context import PodContext
from thunderfleet_kubelet.pods.decide.admission import nice_of
from thunderfleet_kubelet.pods.decide.lifecycle import PROBLEM_LIMIT_SECONDS
from thunderfleet_kubelet.pods.decide.observed import Problem
from thunderfleet_kubelet.pods.decide.podspec import grace_of

RETRY = Backoff(10.0, PROBLEM_LIMIT_SECONDS)
"""The delays between tries of a container that cannot be created."""

HOOK_SECONDS = 60.0


class _Asker:
    """One start of a container, as the image puller needs it."""

    def __init__(self, starter: "Starter", start: Start) -> None:
        self._starter, self._start = starter, start
        self._context = starter.context
        self.key = (self._context.uid, start.container, start.number)
        self.namespace = str(self._context.pod["metadata"]["namespace"])

    def event(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Records an Event about the container."""
        self._context.event(kind, reason, message, self._start.container)

    async def secrets(self) -> list[dict[str, bytes]]:
        """The data of the pod's pull secrets. Raises ApiError."""
        return await self._context.pull_secrets()

    def arrived(self) -> None:
        """Starts the container now."""
        self._starter.image_arrived(self._start.container)


class Starter:
    """``problems``: why containers could not be started, by name."""

    def __init__(self, context: PodContext, mounter: Mounter) -> None:
        self.context = self._context = context
        self._mounter = mounter
        self._tries: dict[str, int] = {}
        self.problems: dict[str, Problem] = {}

    def retry_now(self) -> None:
        """Resets back-off, so that everything is retried immediately."""
        self.problems = {name: replace(problem, retry_at=0.0) for name, problem in self.problems.items()}

    async def start(self, start: Start) -> bool:
        """Starts one attempt. False if it did not start; then the container has a problem or the attempt has ended."""
        context, name = self._context, start.container
        container = context.container(name)
        try:
            launch = await self._prepare(container, start)
            await context.containers.start(name, launch)
        except ImageError as error:
            self._no_image(name, error)
        except ContainerConfigError as error:
            self._fail(name, "CreateContainerConfigError", str(error))
        except ApiError as error:
            self._fail(name, "CreateContainerConfigError", f"cannot read ConfigMaps and Secrets: {error}")
        except ValueError as error:
            # The system cannot take this path or argument, for example because of a null character.
            self._fail(name, "CreateContainerConfigError", str(error))
        except (StartFailed, OSError) as error:
            self._fail(name, "RunContainerError", str(error))
        else:
            return self._started(name, start.number)
        return False

    async def _prepare(self, container: Json, start: Start) -> Launch:
        """Makes the sandbox. Raises ImageError, ContainerConfigError, ApiError and OSError."""
        context, name = self._context, start.container
        image = context.image_for(container, _Asker(self, start))
        owner = context.user(container, image)
        sources = await context.sources(*environment.references([container]))
        host_path = any(kind_of(volume) == "hostPath" for volume in volumes_of(context.pod))
        await context.services.leavings.take(context.folder, owner.uid, host_path=host_path)
        sandbox = await context.containers.make_sandbox(name, start.number)
        variables = environment.build(context.pod, container, image, sandbox, sources)
        if container.get("tty"):
            variables.setdefault("TERM", "xterm")
        argv = environment.command_line(container, image, variables)
        volumes.link_mounts(container, sandbox, self._mounter.places(owner), variables, owner)
        cwd = environment.working_folder(container, image, sandbox)
        _make_folder(cwd, sandbox)
        return Launch(
            start=start,
            argv=[image.program(argv[0]), *argv[1:]],
            env=variables,
            cwd=cwd,
            user=owner,
            grace=grace_of(context.pod),
            image_id=image.id,
            image=str(container.get("image") or ""),
            boot=context.services.settings().boot,
            log_bytes=context.services.settings().log_bytes,
            log_files=context.services.settings().log_files,
            own_user=context.own_user(owner),
            message_path=str(container.get("terminationMessagePath") or "/dev/termination-log"),
            message_from_log=container.get("terminationMessagePolicy") == "FallbackToLogsOnError",
            stdin=bool(container.get("stdin")),
            stdin_once=bool(container.get("stdinOnce")),
            tty=bool(container.get("tty")),
            nice=nice_of(context.pod, container),
        )

    def _started(self, name: str, number: int) -> bool:
        self.problems.pop(name, None)
        self._tries.pop(name, None)
        attempt = self._context.containers.read(name, number)
        if attempt.reason == START_ERROR:
            self._context.event("Warning", "Failed", f"Error: {attempt.message}", name)
            return False
        self._context.event("Normal", "Created", f"Container created: {name}", name)
        self._context.event("Normal", "Started", f"Container started: {name}", name)
        return True

    def _no_image(self, name: str, error: ImageError) -> None:
        if error.wait is None:
            self._fail(name, error.reason, error.message)
            return
        # The retry must come before the wait is so long that it would look like a clock that was set back.
        wait = min(error.wait, PROBLEM_LIMIT_SECONDS / 2)
        self.problems[name] = Problem(error.reason, error.message, self._context.services.now() + wait)
        if error.message:
            self._context.event("Warning", "Failed", f"Error: {error.reason}", name)

    def image_arrived(self, name: str) -> None:
        """Starts the container now, or records why its image is missing. Mounts volumes first: the image may set the user."""
        problem = self.problems.get(name)
        if problem is not None:
            self.problems[name] = replace(problem, retry_at=0.0)
        self._mounter.again()
        self._context.wake()

    def _fail(self, name: str, reason: str, message: str) -> None:
        tries = self._tries[name] = self._tries.get(name, 0) + 1
        self.problems[name] = Problem(reason, message, self._context.services.now() + RETRY.seconds(tries))
        self._context.event("Warning", "Failed", f"Error: {reason}: {message}", name)

    async def post_start(self, name: str, number: int) -> str:
        """Runs the container's postStart hook. Returns its error; empty if it succeeded or there is none."""
        container = self._context.container(name)
        hook = (container.get("lifecycle") or {}).get("postStart")
        if not hook:
            return ""
        run = self._context.runner(name, number)
        success, output = await probes.run(hook, container, self._context.host, run, HOOK_SECONDS)
        return "" if success else f"PostStartHook failed: {output}"


def _make_folder(folder: Path, sandbox: Path) -> None:
    """Creates a missing working folder below the new sandbox, as container runtimes do; never inside a volume."""
    if folder.exists() or not folder.is_relative_to(sandbox):
        return
    for parent in [*reversed(folder.relative_to(sandbox).parents[:-1]), folder.relative_to(sandbox)]:
        if (sandbox / parent).is_symlink():
            return
        if not (sandbox / parent).exists():
            (sandbox / parent).mkdir()

"""One pod from its acceptance to its end: reads what is, lets ``lifecycle`` decide, does it, publishes the status.

A worker is a loop around one step. A step may be done at any time, and any number of times: it looks at everything anew. What
wakes the loop is a change from the API server, the end of a shim, a probe's verdict, or the time that the last decision named.
A kubelet that ends drops its workers in the middle of anything; the next one's look at the same folders.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from thunderfleet_lib.kube import STRATEGIC_PATCH, ApiError, Json, Kube

from thunderfleet_kubelet.containers import environment, exec_session, images, user, volumes
from thunderfleet_kubelet.containers.attempt import START_ERROR, Attempt, Start
from thunderfleet_kubelet.containers.folder import Launch, PodFolder, StartFailed, Watch, container_id, stop_grace
from thunderfleet_kubelet.pods import admission, lifecycle, probes
from thunderfleet_kubelet.pods.events import Recorder
from thunderfleet_kubelet.pods.lifecycle import Decision, Observed, Problem, Stop
from thunderfleet_kubelet.pods.objects import FRESH_SECONDS, Objects
from thunderfleet_kubelet.pods.settings import RuntimeSettings

log = logging.getLogger(__name__)

MANAGER = "thunderfleet-kubelet"
"""Who wrote the status, in the pod's ``managedFields``."""

RETRY_SECONDS = 10.0
"""How long a container that could not be created, or a volume that could not be mounted, waits for another try."""

RETRY_LIMIT_SECONDS = lifecycle.PROBLEM_LIMIT_SECONDS
API_RETRY_SECONDS = 1.0
API_RETRY_LIMIT_SECONDS = 15.0
REFRESH_SECONDS = 60.0
"""How often ConfigMaps, Secrets, tokens and the downward API are compared with what is mounted."""

LOOK_SECONDS = 60.0
"""A pod is looked at this often even if nothing woke its worker."""

LEAST_GRACE_SECONDS = 2.0
"""What a container gets between SIGTERM and SIGKILL even if its preStop hook took all of the grace."""


@dataclass
class Surroundings:
    """What all workers share. ``runtime`` and ``kube`` give the current ones. ``admit`` answers (reason, sentence) for a pod
    that this node must fail. ``ended`` is told when a pod has gone for good.
    """

    node_name: str
    kube: Callable[[], Kube]
    runtime: Callable[[], RuntimeSettings]
    objects: Objects
    recorder: Recorder
    kubelet: user.Self
    admit: Callable[[Json], Awaitable[tuple[str, str] | None]]
    ended: Callable[[str], None]
    now: Callable[[], float] = time.time


@dataclass
class _Live:
    """What the worker holds of one running attempt."""

    number: int
    watch: Watch
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def close(self) -> None:
        self.watch.close()
        for task in self.tasks:
            task.cancel()


class PodWorker:
    """The pod ``pod``, whose folder is ``folder``; ``accepted`` when this node took it before."""

    def __init__(self, pod: Json, folder: PodFolder, around: Surroundings, *, accepted: bool) -> None:
        self.pod = pod
        self.folder = folder
        self.accepted = accepted
        self.removed = False
        self._known_since = time.monotonic()
        self._around = around
        self._wake = asyncio.Event()
        self._live: dict[str, _Live] = {}
        self._ready: dict[str, bool] = {}
        self._started: dict[str, bool] = {}
        self._unhealthy: dict[str, str] = {}
        self._problems: dict[str, Problem] = {}
        self._tries: dict[str, int] = {}
        self._stops: dict[tuple[str, int], float] = {}
        self._told: set[tuple[str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._volumes_ready = False
        self._volumes_retry_at = 0.0
        self._refresh_at = 0.0
        self._status: Json | None = None
        """The status to publish, until the API server has it."""
        self._published: Json | None = None
        self._published_version = 0
        self._base: Json = dict(pod.get("status") or {})
        self._status_changed = asyncio.Event()
        self._gone = False
        self._listed = not accepted
        """Whether the API server's word on this pod has come since this kubelet runs; nothing is published before."""
        self.attempts: dict[str, tuple[Attempt, ...]] = {}

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def key(self) -> str:
        return f"{self.pod['metadata']['namespace']}/{self.pod['metadata']['name']}"

    @property
    def path(self) -> str:
        metadata = self.pod["metadata"]
        return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"

    @property
    def active(self) -> bool:
        """Accepted, known to the API server, and not at its end."""
        return self.accepted and not self.removed and self._base.get("phase") not in lifecycle.TERMINAL_PHASES

    def update(self, pod: Json) -> None:
        """The pod as the API server has it now (same uid). One that is older than what is known is ignored."""
        self.removed = False
        first, self._listed = not self._listed, True
        if _version(pod) < _version(self.pod) or (pod == self.pod and not first):
            return
        self.pod = pod
        if self._status is None or first:
            # What an earlier kubelet published last may be news to this one.
            self._status = None
            self._base = dict(pod.get("status") or {})
            for name, live in self._live.items():
                self._recall(name, container_id(self.uid, name, live.number))
        if self.accepted:
            try:
                self.folder.save(pod)
            except OSError as error:
                # What stands there is older, and good enough for the next kubelet until it has the API server's word.
                log.warning("%s: pod.json not written: %s", self.key, error)
        self.wake()

    def remove(self) -> None:
        """The API server has this pod no more: end it."""
        if not self.removed:
            self.removed = True
            self.wake()

    def wake(self) -> None:
        self._wake.set()

    def settings_changed(self) -> None:
        """What could not be done with the old settings is tried again at once."""
        self._problems = {name: replace(problem, retry_at=0.0) for name, problem in self._problems.items()}
        self.wake()

    def view(self) -> Json:
        """The pod with the status as it is here, published or not."""
        return {**self.pod, "status": self._base}

    # The loop

    async def run(self) -> None:
        """Until the pod has ended for good, or cancelled (then its containers go on)."""
        publisher = asyncio.create_task(self._publish())
        try:
            while not self._gone:
                self._wake.clear()
                wait: float | None = RETRY_SECONDS
                try:
                    wait = await self._step()
                except ApiError as error:
                    log.warning("%s: %s", self.key, error)
                except Exception:
                    # One pod's trouble must not end the others; the next step looks at everything anew.
                    log.exception("%s: step failed", self.key)
                if self._gone:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
        finally:
            publisher.cancel()
            for task in self._tasks:
                task.cancel()
            for live in self._live.values():
                live.close()

    async def _step(self) -> float | None:
        """Looks, decides, acts; how many seconds to wait at most for the next look."""
        if not self.accepted and not await self._accept():
            return None
        self.attempts = self.folder.attempts()
        self._follow(self.attempts)
        blocked = admission.cannot_run(self.pod, self._around.runtime().images, self._around.runtime().mac)
        ending = self.removed or self.pod["metadata"].get("deletionTimestamp")
        mounting = blocked is None and not ending and self._base.get("phase") not in lifecycle.TERMINAL_PHASES
        if mounting:
            await self._mount()
        decision = self._decide(blocked)
        for start in decision.starts:
            await self._start(start)
        for stop in decision.stops:
            self._stop(stop)
        if decision.starts:
            # What became of the starts is seen at once, and only that is published.
            self.attempts = self.folder.attempts()
            self._follow(self.attempts)
            decision = self._decide(blocked)
            if decision.starts or decision.stops:
                self.wake()
        self._tell_back_off(decision)
        if blocked is not None and ("", hash(blocked.reason)) not in self._told:
            self._told.add(("", hash(blocked.reason)))
            self._around.recorder.pod(self.pod, "Warning", blocked.reason, blocked.message)
        if decision.status is not None:
            self._set_status(decision.status)
        if decision.ended:
            await self._finish()
            return RETRY_SECONDS
        # A pod that has ended mounts nothing more: its volumes' times would lie in the past for ever.
        due = (decision.wake_at, self._volumes_retry_at, self._refresh_at) if mounting else (decision.wake_at,)
        times = [at for at in due if at]
        if any(attempt.state == "starting" for all_of in self.attempts.values() for attempt in all_of):
            times.append(self._around.now() + 1.0)
        return min(LOOK_SECONDS, max(0.01, min(times) - self._around.now())) if times else LOOK_SECONDS

    def _decide(self, blocked: Problem | None) -> Decision:
        addresses = self._around.runtime().addresses
        observed = Observed(
            now=self._around.now(),
            attempts=self.attempts,
            ready=self._ready,
            started=self._started,
            unhealthy=self._unhealthy,
            problems=self._problems,
            blocked=blocked,
            volumes_ready=self._volumes_ready,
            removed=self.removed,
            host_ip=addresses[0],
            addresses=addresses,
        )
        return lifecycle.decide(self.view(), observed)

    async def _accept(self) -> bool:
        """Takes the pod, or fails it. False when nothing is left to do until something changes."""
        if self.removed:
            self._gone = True
            self._around.ended(self.uid)
            return False
        if self.pod["metadata"].get("deletionTimestamp"):
            await self._delete()
            return False
        if self._base.get("phase") in lifecycle.TERMINAL_PHASES:
            return False
        verdict = await self._around.admit(self.pod)
        if verdict is None:
            try:
                self.folder.save(self.pod)
            except OSError:
                # Not taken before it stands on disk: the next kubelet must know of it.
                self.accepted = False
                raise
            self.accepted = True
            return True
        reason, message = verdict
        self._around.recorder.pod(self.pod, "Warning", reason, message)
        self._set_status(lifecycle.rejected(self.pod, reason, message, self._around.now()))
        return False

    # Containers

    def _follow(self, attempts: dict[str, tuple[Attempt, ...]]) -> None:
        """Watches what runs, and lets go of what has ended."""
        for name, all_of in attempts.items():
            last, live = all_of[-1] if all_of else None, self._live.get(name)
            if live is not None and (last is None or not last.live or last.number != live.number):
                live.close()
                del self._live[name]
                self._ready.pop(name, None)
                self._started.pop(name, None)
                self._unhealthy.pop(name, None)
                if last is not None and last.grace_exceeded and (name, last.number) not in self._told:
                    self._told.add((name, last.number))
                    self._around.recorder.pod(
                        self.pod,
                        "Warning",
                        "ExceededGracePeriod",
                        f"Container {name} did not end within its grace period and was killed; what it held on the GPU may "
                        "stay wired until the machine restarts",
                        name,
                    )
            if last is not None and last.live and name not in self._live:
                watch = Watch(self.folder.attempt(name, last.number), self.wake)
                self._live[name] = _Live(last.number, watch)
                if last.state == "running":
                    self._start_probes(name, last)

    def _container(self, name: str) -> Json:
        every = lifecycle.init_containers(self.pod) + lifecycle.main_containers(self.pod)
        return next(item for item in every if item["name"] == name)

    def _identity(self, container: Json, image: images.Image) -> user.Identity:
        return user.decide(self.pod, container, image.user, self._around.runtime().default_user, self._around.kubelet)

    def _image(self, container: Json) -> images.Image:
        policy = str(container.get("imagePullPolicy") or "IfNotPresent")
        return images.find(self._around.runtime().images, str(container.get("image") or ""), policy)

    async def _sources(self, config_maps: set[str], secrets: set[str], *, fresh: bool = False) -> environment.Sources:
        """The node's facts, and the named objects read from the API server. Raises ApiError."""
        runtime, namespace = self._around.runtime(), self.pod["metadata"]["namespace"]
        # What was read for an earlier pod may be an object that has since been deleted and made anew under its name.
        age = 0.0 if fresh else min(FRESH_SECONDS, time.monotonic() - self._known_since)
        return environment.Sources(
            node_name=self._around.node_name,
            host_ip=runtime.addresses[0],
            host_ips=runtime.addresses,
            api_server=runtime.api_server,
            path=runtime.path,
            python_path=runtime.python_path,
            allocatable=runtime.allocatable,
            config_maps={
                name: await self._around.objects.get("ConfigMap", namespace, name, max_age=age) for name in sorted(config_maps)
            },
            secrets={name: await self._around.objects.get("Secret", namespace, name, max_age=age) for name in sorted(secrets)},
        )

    async def _start(self, start: Start) -> None:
        """Prepares and starts one attempt; what goes wrong becomes the container's problem."""
        container, tell = self._container(start.container), self._around.recorder.pod
        name = start.container
        try:
            image = self._image(container)
            owner = self._identity(container, image)
            sources = await self._sources(*environment.references([container]))
            sandbox = self.folder.make_sandbox(name, start.number)
            variables = environment.build(self.pod, container, image, sandbox, sources)
            argv = environment.command_line(container, image, variables)
            volumes.link_mounts(container, sandbox, self._places(owner), variables, owner)
            cwd = environment.working_folder(container, image, sandbox)
            _make_folder(cwd, sandbox)
            launch = Launch(
                start=start,
                argv=argv,
                env=variables,
                cwd=cwd,
                identity=owner,
                grace=lifecycle.grace_of(self.pod),
                image_id=image.id,
                message_path=str(container.get("terminationMessagePath") or "/dev/termination-log"),
                message_from_log=container.get("terminationMessagePolicy") == "FallbackToLogsOnError",
            )
            tell(self.pod, "Normal", "Pulled", f"Container image {image.name!r} is folder {image.folder} of this machine", name)
            await self.folder.start(name, launch)
        except images.ImageError as error:
            self._fail(name, error.reason, error.message)
        except user.ConfigProblem as error:
            self._fail(name, "CreateContainerConfigError", str(error))
        except ApiError as error:
            self._fail(name, "CreateContainerConfigError", f"cannot read what the environment needs: {error}")
        except (StartFailed, OSError) as error:
            self._fail(name, "RunContainerError", str(error))
        else:
            self._problems.pop(name, None)
            self._tries.pop(name, None)
            attempt = self.folder.read(name, start.number)
            if attempt.reason == START_ERROR:
                tell(self.pod, "Warning", "Failed", f"Error: {attempt.message}", name)
                return
            tell(self.pod, "Normal", "Created", f"Container created: {name}", name)
            tell(self.pod, "Normal", "Started", f"Container started: {name}", name)
            hook = (container.get("lifecycle") or {}).get("postStart")
            if hook:
                self._spawn(self._post_start(container, start.number, hook))

    def _fail(self, name: str, reason: str, message: str) -> None:
        # What is in the pod or the settings rarely mends itself; what is read from the API server comes and goes.
        tries = self._tries[name] = self._tries.get(name, 0) + 1
        wait = min(RETRY_SECONDS * 2 ** min(tries - 1, 10), RETRY_LIMIT_SECONDS)
        self._problems[name] = Problem(reason, message, self._around.now() + wait)
        self._around.recorder.pod(self.pod, "Warning", "Failed", f"Error: {reason}: {message}", name)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_in(self, name: str, number: int, command: list[str], seconds: float) -> tuple[int, str]:
        return await exec_session.run(self.folder, name, number, command, seconds)

    def _runner(self, name: str, number: int) -> probes.Exec:
        async def run(command: list[str], seconds: float) -> tuple[int, str]:
            return await self._run_in(name, number, command, seconds)

        return run

    async def _post_start(self, container: Json, number: int, hook: Json) -> None:
        name = container["name"]
        host = self._around.runtime().addresses[0]
        good, said = await probes.ask(hook, container, host, self._runner(name, number), 60.0)
        if not good:
            self._around.recorder.pod(self.pod, "Warning", "FailedPostStartHook", f"PostStartHook failed: {said}", name)
            self._unhealthy[name] = "its postStart hook failed"
            self.wake()

    def _stop(self, stop: Stop) -> None:
        """Begins to end an attempt; asked again, only less grace changes anything."""
        key = (stop.container, stop.number)
        before = self._stops.get(key)
        if before is not None and stop.grace >= before:
            return
        self._stops[key] = stop.grace
        if before is None:
            self._spawn(self._end(stop))
        else:
            self.folder.stop(stop.container, stop.number, stop.grace)

    async def _end(self, stop: Stop) -> None:
        container, name = self._container(stop.container), stop.container
        began = asyncio.get_running_loop().time()
        asked = stop_grace(self.folder.attempt(name, stop.number))
        hook = (container.get("lifecycle") or {}).get("preStop")
        if asked is None:
            self._around.recorder.pod(self.pod, "Normal", "Killing", f"Stopping container {name}: {stop.message}", name)
            if hook and stop.grace > 0:
                host = self._around.runtime().addresses[0]
                good, said = await probes.ask(hook, container, host, self._runner(name, stop.number), stop.grace)
                if not good:
                    self._around.recorder.pod(self.pod, "Warning", "FailedPreStopHook", f"PreStopHook failed: {said}", name)
        grace = self._stops[(name, stop.number)]
        if grace > 0:
            grace = max(grace - (asyncio.get_running_loop().time() - began), min(grace, LEAST_GRACE_SECONDS))
        self.folder.stop(name, stop.number, grace)

    def _tell_back_off(self, decision: Decision) -> None:
        for name in decision.backing_off:
            last = self.attempts[name][-1]
            if (name, -1 - last.number) not in self._told:
                self._told.add((name, -1 - last.number))
                message = f"Back-off {last.backoff:.0f}s restarting failed container {name} in pod {self.key}"
                self._around.recorder.pod(self.pod, "Warning", "BackOff", message, name)

    # Probes

    def _start_probes(self, name: str, attempt: Attempt) -> None:
        """One task a probe. A container that the API server calls ready, and that still is the same, stays so until a probe
        says otherwise: a kubelet's restart takes no pod out of service.
        """
        container, live = self._container(name), self._live[name]
        self._recall(name, attempt.container_id)
        for kind, key in (("startup", "startupProbe"), ("readiness", "readinessProbe"), ("liveness", "livenessProbe")):
            if container.get(key):
                task = asyncio.create_task(self._probe(kind, container, attempt, container[key]))
                live.tasks.add(task)

    def _recall(self, name: str, container_id: str) -> None:
        """Takes over an earlier kubelet's verdicts on a container that still runs, where this one has none."""
        for known in [*(self._base.get("containerStatuses") or []), *(self._base.get("initContainerStatuses") or [])]:
            if known.get("name") == name and known.get("containerID") == container_id:
                if known.get("started"):
                    self._started.setdefault(name, True)
                if known.get("ready"):
                    self._ready.setdefault(name, True)

    async def _probe(self, kind: str, container: Json, attempt: Attempt, probe: Json) -> None:
        name, settings = container["name"], probes.Settings.of(probe)
        count = probes.Count(settings.success_threshold, settings.failure_threshold)
        if kind == "startup" and self._started.get(name):
            return
        wait = (attempt.started_at or 0.0) + settings.delay - self._around.now()
        await asyncio.sleep(min(max(0.0, wait), settings.delay))
        while True:
            if kind != "startup" and "startupProbe" in container and not self._started.get(name):
                await asyncio.sleep(min(1.0, settings.period))
                continue
            run = self._runner(name, attempt.number)
            good, said = await probes.ask(probe, container, self._around.runtime().addresses[0], run, settings.timeout)
            if not good and (name, attempt.number) not in self._stops:
                self._around.recorder.pod(self.pod, "Warning", "Unhealthy", f"{kind.capitalize()} probe failed: {said}", name)
            if count.add(good):
                self._verdict(kind, name, good)
                if kind == "startup" and good:
                    return
            await asyncio.sleep(settings.period)

    def _verdict(self, kind: str, name: str, good: bool) -> None:
        if kind == "readiness":
            self._ready[name] = good
        elif kind == "startup" and good:
            self._started[name] = True
        elif not good:
            self._unhealthy[name] = f"its {kind} probe failed, it will be restarted"
        self.wake()

    # Volumes

    def _owners(self) -> dict[str, user.Identity]:
        """Who each container runs as, of those for which that can be said."""
        owners = {}
        for container in lifecycle.init_containers(self.pod) + lifecycle.main_containers(self.pod):
            with contextlib.suppress(images.ImageError, user.ConfigProblem):
                owners[str(container["name"])] = self._identity(container, self._image(container))
        return owners

    def _places(self, owner: user.Identity) -> dict[str, Path]:
        """Where each volume lies for a container of ``owner``."""
        places = {}
        for volume in self.pod["spec"].get("volumes") or []:
            name, kind = str(volume["name"]), volumes.kind_of(volume)
            if kind == "hostPath":
                places[name] = Path(str(volume["hostPath"]["path"]))
            elif kind == "emptyDir":
                places[name] = self.folder.empty(name)
            else:
                places[name] = self.folder.volume(name, owner.uid)
        return places

    async def _mount(self) -> None:
        """Sets up the pod's volumes, and from time to time brings them up to date."""
        now = self._around.now()
        due = self._refresh_at if self._volumes_ready else self._volumes_retry_at
        # Further away than it was ever set: the clock was set back.
        if now < due <= now + 2 * REFRESH_SECONDS:
            return
        try:
            await self._write_volumes()
        except (volumes.VolumeProblem, ApiError, OSError) as error:
            if self._volumes_ready:
                # What is mounted stays; an API server that is away must not touch a running pod.
                log.info("%s: volumes not brought up to date: %s", self.key, error)
                self._refresh_at = now + REFRESH_SECONDS
                return
            self._volumes_retry_at = now + RETRY_SECONDS
            self._around.recorder.pod(self.pod, "Warning", "FailedMount", f"Volumes cannot be set up: {error}")
        else:
            self._volumes_ready, self._volumes_retry_at = True, 0.0
            written = any(volumes.kind_of(volume) in volumes.WRITTEN for volume in self.pod["spec"].get("volumes") or [])
            self._refresh_at = now + REFRESH_SECONDS * random.uniform(0.8, 1.2) if written else 0.0

    async def _write_volumes(self) -> None:
        owners = self._owners()
        config_maps, secrets, wanted = volumes.references(self.pod)
        sources = await self._sources(config_maps, secrets)
        tokens = {
            token: (await self._around.objects.token(self.pod, token.audience, token.seconds)).text
            for token in sorted(wanted, key=lambda item: (item.audience, item.seconds))
        }
        users: dict[str, set[user.Identity]] = {}
        for container in lifecycle.init_containers(self.pod) + lifecycle.main_containers(self.pod):
            for mount in container.get("volumeMounts") or []:
                if container["name"] in owners:
                    users.setdefault(str(mount["name"]), set()).add(owners[container["name"]])
        for volume in self.pod["spec"].get("volumes") or []:
            name, kind = str(volume["name"]), volumes.kind_of(volume)
            if kind == "hostPath":
                volumes.check_host_path(volume)
            elif kind == "emptyDir":
                volumes.make_empty(self.folder.empty(name), users.get(name) or set())
            else:
                files = volumes.plan(volume, self.pod, sources, tokens)
                for owner in {item.uid: item for item in users.get(name) or ()}.values():
                    folder = self.folder.volume(name, owner.uid)
                    folder.parent.mkdir(exist_ok=True)
                    folder.parent.chmod(0o711)
                    volumes.write_atomically(folder, files, owner)

    # Status

    def _set_status(self, status: Json) -> None:
        """Publishes ``status`` unless the API server has it."""
        if not self._listed:
            return
        self._base = {**self._base, **status}
        if self._status is None:
            if _holds(self.pod.get("status") or {}, status):
                return
            if self._published == status and _version(self.pod) <= self._published_version:
                # The API server took it and writes it in its own way: saying it again would change nothing.
                return
        elif self._status == status:
            # On its way already; a second copy would keep the publisher and the steps waking each other for ever.
            return
        self._status = status
        self._status_changed.set()

    async def _publish(self) -> None:
        """Writes the newest status, again and again until the API server has taken it. Runs beside the steps: containers are
        looked after while the API server is away.
        """
        delay = API_RETRY_SECONDS
        while True:
            await self._status_changed.wait()
            self._status_changed.clear()
            status = self._status
            if status is None:
                continue
            body = {"metadata": {"uid": self.uid}, "status": _as_patch(status)}
            try:
                answer = await self._around.kube().patch(self.path + "/status", body, STRATEGIC_PATCH, MANAGER)
            except ApiError as error:
                if error.status in (404, 409):
                    # Gone, or another pod has its name: the watch will say so.
                    self._status = None
                    self.wake()
                    continue
                log.warning("%s: status not written, again in %.0f s: %s", self.key, delay, error)
                self._status_changed.set()
                await asyncio.sleep(delay * random.uniform(0.8, 1.2))
                delay = min(delay * 2, API_RETRY_LIMIT_SECONDS)
                continue
            except Exception:
                log.exception("%s: status not written", self.key)
                self._status_changed.set()
                await asyncio.sleep(API_RETRY_LIMIT_SECONDS)
                continue
            delay = API_RETRY_SECONDS
            self._published = status
            self._published_version = _version(answer)
            if self._status == status:
                self._status = None
            if answer.get("metadata", {}).get("uid") == self.uid and _version(answer) >= _version(self.pod):
                self.pod = answer
            self.wake()

    async def _finish(self) -> None:
        """Nothing of the pod runs any more: the last status, the last delete, and its folder goes."""
        if not self.removed:
            if self._status is not None:
                # The publisher wakes us when it is out.
                return
            await self._delete()
        if self.removed or self._gone:
            self._gone = True
            self.folder.remove()
            self._around.objects.forget(self.uid)
            self._around.ended(self.uid)

    async def _delete(self) -> None:
        """Tells the API server that nothing is left. Raises ApiError when it cannot be reached."""
        await self._around.kube().delete(self.path, grace_seconds=0, uid=self.uid)
        self._gone = True
        if not self.accepted:
            self._around.ended(self.uid)


def _make_folder(folder: Path, sandbox: Path) -> None:
    """Makes a working folder under the new sandbox that is not there, as container runtimes do; never inside of a volume."""
    if folder.exists() or not folder.is_relative_to(sandbox):
        return
    for parent in [*reversed(folder.relative_to(sandbox).parents[:-1]), folder.relative_to(sandbox)]:
        if (sandbox / parent).is_symlink():
            return
        if not (sandbox / parent).exists():
            (sandbox / parent).mkdir()


def _as_patch(status: Json) -> Json:
    """The status as a strategic merge patch: conditions are merged by type, so what a condition has no more is named."""
    cleared = {"reason": None, "message": None}
    if "conditions" not in status:
        return status
    return {**status, "conditions": [cleared | condition for condition in status["conditions"]]}


def _version(item: Json) -> int:
    text = str(item["metadata"].get("resourceVersion") or "0")
    return int(text) if text.isdigit() else 0


def _holds(present: object, wanted: object) -> bool:
    """Whether ``present`` says everything that ``wanted`` says; what is empty need not be there."""
    if isinstance(wanted, dict):
        known = present if isinstance(present, dict) else {}
        return all(_holds(known.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        known_items = present if isinstance(present, list) else []
        if wanted and isinstance(wanted[0], dict) and "type" in wanted[0]:
            by_type = {item.get("type"): item for item in known_items}
            return all(_holds(by_type.get(item["type"]), {"reason": None, "message": None} | item) for item in wanted)
        return len(known_items) == len(wanted) and all(map(_holds, known_items, wanted))
    return present == wanted or (not present and not wanted)

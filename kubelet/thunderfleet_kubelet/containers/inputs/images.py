"""Images as folders on this machine.

A container is a native process, so an image is a folder: programs in ``bin/``, and optionally ``config.json``, the ``config``
object of an OCI image. The kubelet's configuration names the folders, except that of ``own_image`` and those of pulled images.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thunderfleet_kubelet.containers.errors import ImageError

Json = dict[str, Any]

MAX_USER = 256
"""Characters of a user and a group."""
MAX_PATH = 16 * 1024
"""Characters of the PATH of a pulled image, whose folders are looked up."""


@dataclass(frozen=True)
class Image:
    """An image as a folder. ``user``: as in the image's config, so empty, ``uid[:gid]`` or names."""

    name: str
    folder: Path
    env: tuple[tuple[str, str], ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_folder: str = ""
    user: str = ""
    identity: str = ""
    """Registry, repository and digest of a pulled image."""

    @property
    def id(self) -> str:
        """The ``imageID`` of the container status."""
        return self.identity or f"file://{self.folder}"

    def program(self, name: str) -> str:
        """The path of an absolute program name: inside the image if it exists there, else on the host."""
        inside = self.folder / name.lstrip("/")
        return str(inside) if name.startswith("/") and inside.exists() else name


def find(images: Mapping[str, Path], name: str, pull_policy: str, missing: str | None = None) -> Image:
    """The image ``name``. ``missing``: advice for the error if this machine does not have the image.

    Raises ImageError if the image is not there or its folder is unusable.
    """
    folder = images.get(name)
    if folder is None:
        message = f"image {name!r} is not on this machine: {missing}"
        if missing is None:
            known = ", ".join(sorted(images)) or "none"
            message = (
                f"image {name!r} is not configured, and its name has no registry to pull it from, such as "
                f"registry.example.com/{name}: name the registry, or add the image to images in the kubelet's configuration "
                f"and restart the kubelet (configured: {known})"
            )
        raise ImageError("ErrImageNeverPull" if pull_policy == "Never" else "ImagePullBackOff", message)
    if not folder.is_dir():
        raise ImageError(
            "ImageInspectError",
            f"image {name!r}: folder {folder} not found; correct images in the kubelet's configuration and restart the kubelet",
        )
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        return _parse(name, folder, config)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ImageError("ImageInspectError", f"{file}: invalid OCI image config: {error}") from error


def pulled(name: str, folder: Path, config: Json, identity: str) -> Image:
    """A pulled image, whose files are in ``folder``. Raises ValueError, TypeError and AttributeError for an unusable config.

    Folders of its PATH are those in the image if they are there: a container has the host's files, and not the image as its
    root.
    """
    image = _parse(name, folder, config)
    env = tuple((key, _path(value, folder) if key == "PATH" else value) for key, value in image.env)
    return replace(image, env=env, identity=identity)


def _path(value: str, folder: Path) -> str:
    if len(value) > MAX_PATH:
        raise ValueError(f"PATH has {len(value)} characters; at most {MAX_PATH} are allowed")
    entries = [entry for entry in value.split(":") if entry.startswith("/") and ".." not in entry.split("/")]
    inside = [str(folder / entry.lstrip("/")) for entry in entries if (folder / entry.lstrip("/")).is_dir()]
    return ":".join([*inside, *(value.split(":") if value else [])])


def _text(value: object, what: str) -> str:
    """``value`` as text that a process can be given. Raises ValueError."""
    if not isinstance(value, str | int | float):
        raise ValueError(f"{what} must be text, not {type(value).__name__}")
    text = str(value)
    # JSON strings can contain both, but environment variables and paths cannot.
    if "\0" in text or any("\ud800" <= one <= "\udfff" for one in text):
        raise ValueError(f"{what} has a character that no process can be given: {text[:100]!r}")
    return text


def _parse(name: str, folder: Path, config: Json) -> Image:
    env = []
    for entry in config.get("Env") or []:
        key, mark, value = _text(entry, "an entry of Env").partition("=")
        if not key or not mark:
            raise ValueError(f"Env entry {entry!r} must be NAME=VALUE")
        env.append((key, value))
    user = _text(config.get("User") or "", "User")
    if len(user) > MAX_USER:
        raise ValueError(f"User has {len(user)} characters; at most {MAX_USER} are allowed")
    return Image(
        name=name,
        folder=folder,
        env=tuple(env),
        entrypoint=tuple(_text(word, "a word of Entrypoint") for word in config.get("Entrypoint") or []),
        command=tuple(_text(word, "a word of Cmd") for word in config.get("Cmd") or []),
        working_folder=_text(config.get("WorkingDir") or "", "WorkingDir"),
        user=user,
    )

"""From an image name to a folder on this machine that stands for it.

A pod here is a native process, so an image is a folder whose programs run from where they lie: ``bin/``, and optionally
``config.json``, the ``config`` object of an OCI image. Folders come from the kubelet's configuration by exact name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class ImageError(Exception):
    """The image cannot be used: ``reason`` of the Waiting container, and a sentence."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


@dataclass(frozen=True)
class Image:
    """An image that can run here. ``user`` is as the image's config has it: ``""``, ``uid[:gid]`` or names."""

    name: str
    folder: Path
    env: tuple[tuple[str, str], ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    working_folder: str = ""
    user: str = ""

    @property
    def id(self) -> str:
        """What stands in ``imageID``."""
        return f"file://{self.folder}"


def find(images: Mapping[str, Path], name: str, pull_policy: str) -> Image:
    """The image called ``name``. Raises ImageError when the configuration has none of that name, or its folder is unusable."""
    folder = images.get(name)
    if folder is None:
        known = ", ".join(sorted(images)) or "none"
        message = f"image {name!r} is not in this kubelet's map of images ({known}), and images are not pulled here"
        raise ImageError("ErrImageNeverPull" if pull_policy == "Never" else "ImagePullBackOff", message)
    if not folder.is_dir():
        raise ImageError("ImageInspectError", f"the folder of image {name!r}, {folder}, does not exist")
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        return _parse(name, folder, config)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ImageError("ImageInspectError", f"{file} is not the config of an OCI image: {error}") from error


def _parse(name: str, folder: Path, config: Json) -> Image:
    env = []
    for entry in config.get("Env") or []:
        key, mark, value = str(entry).partition("=")
        if not key or not mark:
            raise ValueError(f"Env entry {entry!r} is not NAME=VALUE")
        env.append((key, value))
    return Image(
        name=name,
        folder=folder,
        env=tuple(env),
        entrypoint=tuple(str(word) for word in config.get("Entrypoint") or []),
        command=tuple(str(word) for word in config.get("Cmd") or []),
        working_folder=str(config.get("WorkingDir") or ""),
        user=str(config.get("User") or ""),
    )

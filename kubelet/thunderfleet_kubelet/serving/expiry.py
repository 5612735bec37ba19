"""When the certificates of the control plane on this machine expire."""

import logging
from collections.abc import Mapping
from pathlib import Path

from thunderfleet_kubelet.bootstrap import certificate_process

log = logging.getLogger(__name__)

MOST_FILES = 100
"""Maximum number of files; a control plane has fewer."""


class ControlPlaneCertificates:
    """The certificates in ``folder`` (``NAME.crt``, PEM). The files are read at each call, so a renewal shows at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, float | str] = {}
        """When each certificate expires, or its problem, by its text."""
        self._problems: set[str] = set()

    def read(self) -> Mapping[str, float]:
        """When each certificate expires (seconds since the Unix epoch), by name. Blocks while new certificates are read.

        A file that cannot be read is left out, and logged once.
        """
        found: dict[str, float] = {}
        problems, texts = set(), dict[Path, str]()
        for file in sorted(self._folder.glob("*.crt"))[:MOST_FILES]:
            try:
                texts[file] = file.read_text("latin-1")
            except OSError as error:
                problems.add(f"cannot read the certificate {file}: {error}")
        known = self._known = self._learn(set(texts.values()), self._known)
        for file, text in texts.items():
            end = known[text]
            if isinstance(end, str):
                problems.add(f"cannot read the certificate {file}: {end}")
            else:
                found[file.stem] = end
        if not found and not problems:
            problems.add(f"no certificates of the control plane in {self._folder}; run `sudo thunderfleet init`")
        for problem in sorted(problems - self._problems):
            log.warning("%s", problem)
        self._problems = problems
        return found

    @staticmethod
    def _learn(texts: set[str], known: Mapping[str, float | str]) -> dict[str, float | str]:
        """The expiry of each of ``texts``. One process reads all that are new."""
        new = sorted(texts - known.keys())
        read = dict(zip(new, certificate_process.ends(new), strict=True)) if new else {}
        return {text: known[text] if text in known else read[text] for text in texts}

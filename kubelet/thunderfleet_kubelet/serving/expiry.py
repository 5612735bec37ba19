"""When the certificates of the control plane on this machine expire."""

import logging
from collections.abc import Mapping
from pathlib import Path

from thunderfleet_kubelet.bootstrap import keyprocess

log = logging.getLogger(__name__)

MOST_FILES = 100
"""More than a control plane has."""


class ControlPlaneCertificates:
    """The certificates in ``folder`` (``NAME.crt``, PEM). The files are read at each call, so a renewal shows at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, float | str] = {}
        """The end, or the problem, of each certificate by its text."""
        self._problems: set[str] = set()

    def read(self) -> Mapping[str, float]:
        """The end of each certificate in seconds since the Unix epoch, by its name.

        A file that cannot be read is left out, and logged once.
        """
        found: dict[str, float] = {}
        problems, texts = set(), dict[Path, str]()
        for file in sorted(self._folder.glob("*.crt"))[:MOST_FILES]:
            try:
                texts[file] = file.read_text("latin-1")
            except OSError as error:
                problems.add(f"cannot read the certificate {file}: {error}")
        self._learn(set(texts.values()))
        for file, text in texts.items():
            end = self._known[text]
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

    def _learn(self, texts: set[str]) -> None:
        """Reads the certificates that are new, in one process, and forgets those that are gone."""
        self._known = {text: end for text, end in self._known.items() if text in texts}
        new = sorted(texts - self._known.keys())
        if new:
            self._known.update(zip(new, keyprocess.ends(new), strict=True))

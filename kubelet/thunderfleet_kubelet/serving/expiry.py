"""When the certificates of the control plane on this machine expire."""

import logging
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509

log = logging.getLogger(__name__)

MOST_FILES = 100
"""More than a control plane has."""


class ControlPlaneCertificates:
    """The certificates in ``folder`` (``NAME.crt``, PEM). They are read at each call, so a renewal shows at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._problems: set[str] = set()

    def read(self) -> Mapping[str, float]:
        """The end of each certificate in seconds since the Unix epoch, by its name.

        A file that cannot be read is left out, and logged once.
        """
        found: dict[str, float] = {}
        problems = set()
        for file in sorted(self._folder.glob("*.crt"))[:MOST_FILES]:
            try:
                # The first of a chain is the one that is presented.
                first = x509.load_pem_x509_certificates(file.read_bytes())[0]
            except (OSError, ValueError) as error:
                problems.add(f"cannot read the certificate {file}: {error}")
            else:
                found[file.stem] = first.not_valid_after_utc.timestamp()
        if not found and not problems:
            problems.add(f"no certificates of the control plane in {self._folder}; run `sudo thunderfleet init`")
        for problem in sorted(problems - self._problems):
            log.warning("%s", problem)
        self._problems = problems
        return found

"""Sets the limit of GPU memory. This is a choice of the user and not a repair."""

from thunderfleet_controlplane.daemons.layout import HostLayout
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.mac import gpu_memory
from thunderfleet_lib.host.hostcmd import BlockingHost
from thunderfleet_lib.host.parsing import ParseError

from thunderfleet_cli.doctor.checks.check import Repair
from thunderfleet_cli.doctor.checks.system import MEMORY, SYSTEM_MB, memory_of, most_gpu_memory
from thunderfleet_cli.doctor.host import Repaired

MOST, DEFAULT = "max", "default"
LEAST_MB = 1024
DIGITS = 9
SECONDS = 10.0
NAME = "gpu-memory"


def megabytes(text: str) -> str:
    """A value of the option. Raises ValueError."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < DIGITS else 0
    if text not in (MOST, DEFAULT) and number < LEAST_MB:
        raise ValueError(text)
    return text


def put(wanted: str, layout: HostLayout) -> Repaired:
    """Set the limit now and after each restart, or remove it."""
    host, command = BlockingHost(), ("thunderfleet", "doctor", "--fix", "--gpu-memory")
    repair = Repair(((*command, wanted),), ((*command, DEFAULT),))
    try:
        if wanted == DEFAULT:
            if not gpu_memory.forget(host, layout):
                gpu_memory.use_default(host)
        else:
            _, memory = memory_of({MEMORY: host.run(MEMORY, SECONDS)})
            limit = most_gpu_memory(memory) if wanted == MOST else int(wanted)
            if limit > memory - SYSTEM_MB:
                return Repaired(NAME, repair, f"{limit} MB of {memory} MB leave macOS less than {SYSTEM_MB} MB")
            gpu_memory.keep(host, layout, limit)
    except (InstallError, ParseError) as error:
        return Repaired(NAME, repair, str(error))
    return Repaired(NAME, repair, ran=True)

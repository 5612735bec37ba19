"""Access to the API server.

client     requests, typed errors, paged lists, watch connections
control_plane  which part of the control plane does not answer
execution  runs a command in a container
fields     lists by the value of a field
kubeconfig  reads kubeconfig files
plugin     credential plugins of kubeconfigs, with a time limit
proxy      the proxy that the environment names for the API server
server_clock  how far the clock of this machine is from the API server's; pure
reflector  list and watch: a local cache of one collection
retries    how long to wait after a failed request
names      names and keys of objects
"""

from thunderfleet_lib.kube.client import (
    APPLY,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    PAGE,
    STRATEGIC_PATCH,
    ApiError,
    Kube,
)
from thunderfleet_lib.kube.control_plane import Part, Silence, of_part, silent_part
from thunderfleet_lib.kube.names import Json, key_of, name_of
from thunderfleet_lib.kube.reflector import Reflector
from thunderfleet_lib.kube.retries import Retries
from thunderfleet_lib.kube.server_clock import ServerClock

__all__ = [
    "APPLY",
    "JSON",
    "JSON_PATCH",
    "MERGE_PATCH",
    "PAGE",
    "STRATEGIC_PATCH",
    "ApiError",
    "Json",
    "Kube",
    "Part",
    "Reflector",
    "Retries",
    "ServerClock",
    "Silence",
    "key_of",
    "name_of",
    "of_part",
    "silent_part",
]

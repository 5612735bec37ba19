"""Checks on a Mac before a rank starts there: everything on which MLX would later hang or report a misleading error.

``check`` reads files, so callers run it in a thread.
"""

import hashlib
import json
from importlib import metadata
from pathlib import Path

from thunderfleet_crds.exchange.plan import Plan, RankPlan
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import Backend, FaultClass
from thunderfleet_lib import jsonbounds
from thunderfleet_lib.modelstore import parts

from thunderfleet_runner.faults import Fault
from thunderfleet_runner.host import broken_models, memory, rdma, weightfiles
from thunderfleet_runner.host.commands import HOST
from thunderfleet_runner.net import jaccl, ports

_TOKENIZER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_CONFIG_BYTES = 16 * 1024 * 1024
_CONFIG_VALUES = 1_000_000
_CONFIG_DEPTH = 64
_TOKENIZER_BYTES = 256 * 1024 * 1024
_GIB = 1 << 30


class PreflightFailed(Exception):
    """This Mac cannot start its rank now; ``fault`` has the reason."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def check(plan: Plan, entry: RankPlan, held: int = 0) -> str:
    """Runs all checks for one rank. ``held``: bytes of its reservation that its own process already uses.

    Returns the model's digest, as ``check_model``. Raises PreflightFailed for the first check that fails.
    """
    check_addresses(plan, entry)
    if plan.backend is Backend.JACCL:
        check_rdma(plan, entry)
    digest = check_model(plan, entry)
    free = memory.free_bytes()
    check_memory(entry, None if free is None else free + held)
    return digest


def check_addresses(plan: Plan, entry: RankPlan) -> None:
    """This Mac has the planned addresses."""
    wanted = [entry.address, *plan.relay_addresses(entry.rank)]
    if plan.backend is Backend.RING and entry.ring_address:
        wanted.append(entry.ring_address)
    for address in wanted:
        if not ports.is_ours(address):
            raise PreflightFailed(
                Fault(FaultClass.REPLAN, Reason.ADDRESS_LOST, f"node {entry.node} no longer has the planned address {address}")
            )


def check_rdma(plan: Plan, entry: RankPlan) -> None:
    """The RDMA devices towards this rank's peers exist, are Active, and have an address."""
    try:
        row = jaccl.device_matrix(plan)[entry.rank]
    except ValueError as error:
        raise PreflightFailed(Fault(FaultClass.REPLAN, Reason.DEVICE_MATRIX, str(error))) from error
    fault = rdma.check(HOST, entry.node, tuple(dict.fromkeys(device for device in row if device is not None)))
    if fault is not None:
        raise PreflightFailed(fault)


def check_model(plan: Plan, entry: RankPlan) -> str:
    """The model is complete: every tensor, in files of the right length. Reads headers and small files only.

    Returns a digest of the model's content, except for the values of its weights. Raises PreflightFailed.
    """
    folder = Path(plan.model_path)
    if not (folder / "config.json").is_file():
        raise PreflightFailed(
            Fault(
                FaultClass.CONFIGURE,
                Reason.MODEL_NOT_FOUND,
                f"no model in {folder} on node {entry.node} (no config.json); copy the model there or change spec.model",
            )
        )
    try:
        _check_known(folder, entry.node)
        return _digest(folder, weightfiles.read(folder), _part(folder, entry))
    except weightfiles.IncompleteModel as error:
        text = f"the model in {folder} on node {entry.node} is incomplete: {error}; download it again"
        raise PreflightFailed(Fault(FaultClass.CONFIGURE, Reason.MODEL_INCOMPLETE, text)) from error
    except OSError as error:
        text = (
            f"the model in {folder} on node {entry.node} cannot be read: {error.strerror} ({error.filename}); let all users of "
            f"the Mac read it (sudo chmod -R a+rX {folder}) and enter all folders above it"
        )
        raise PreflightFailed(Fault(FaultClass.CONFIGURE, Reason.MODEL_UNREADABLE, text)) from error


def _part(folder: Path, entry: RankPlan) -> parts.Part | None:
    """Which part of the model the folder has; None for the whole. Raises IncompleteModel if it is not that of the rank."""
    found = weightfiles.part_of(folder)
    if found is not None and entry.layers is not None and not frozenset(range(*entry.layers)) <= found.layers:
        first, last = entry.layers
        raise weightfiles.IncompleteModel(
            f"the folder has a part of the model, which does not include all of the layers {first} to {last - 1}"
        )
    return found


def _check_known(folder: Path, node: str) -> None:
    """Checks that the model is not one that is known not to work with the installed mlx-lm. Raises OSError, PreflightFailed."""
    try:
        raw = weightfiles.read_regular(folder / "config.json", _CONFIG_BYTES)
        config = jsonbounds.loads(raw, values=_CONFIG_VALUES, depth=_CONFIG_DEPTH, constants=True)
    except ValueError:
        # Loading reports the problem of the file.
        return
    why = broken_models.why_broken(config, version("mlx-lm")) if isinstance(config, dict) else None
    if why is not None:
        text = f"{why}; choose another model, or install a newer mlx-lm on node {node}"
        raise PreflightFailed(Fault(FaultClass.CONFIGURE, Reason.MODEL_UNSUPPORTED, text))


def check_memory(entry: RankPlan, free: int | None) -> None:
    """Checks that the planned memory is free now, and not only unrequested. If the free memory is unknown, the check passes."""
    if free is not None and free < entry.memory_bytes:
        raise PreflightFailed(
            Fault(
                FaultClass.RETRY,
                Reason.MEMORY_NOT_FREE,
                f"node {entry.node} has {free / _GIB:.1f} GiB free, the plan reserves {entry.memory_bytes / _GIB:.1f} GiB: "
                "close other programs on it, or lower spec.memory.contextTokens, concurrentRequests or cachedTokens",
            )
        )


def digest(plan: Plan) -> str:
    """The model's digest, or "" when it cannot be read."""
    try:
        return check_model(plan, plan.ranks[0])
    except PreflightFailed:
        return ""


def _digest(folder: Path, tensors: tuple[weightfiles.Tensor, ...], part: parts.Part | None) -> str:
    state = hashlib.sha256()
    for name in _TOKENIZER_FILES:
        path = folder / name
        if path.is_file():
            state.update(f"{name}\0".encode())
            state.update(hashlib.sha256(weightfiles.read_regular(path, _TOKENIZER_BYTES)).digest())
    if part is not None:
        # Ranks have different files here; the manifest has the hashes of all of them.
        state.update(f"part of {part.manifest}".encode())
    for tensor in () if part is not None else tensors:
        state.update(json.dumps([tensor.name, tensor.dtype, tensor.shape]).encode())
    return state.hexdigest()


def prompt_versions() -> tuple[str, ...]:
    """Versions that affect the test prompt and its tokens: of this program, and of the libraries that read tokenizers."""
    return tuple(version(distribution) for distribution in ("thunderfleet", "transformers", "tokenizers"))


def version(distribution: str) -> str:
    """An installed distribution's version without importing it; "" when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""

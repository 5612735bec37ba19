"""PromQL that counts each program once, although a Prometheus may scrape it by annotation and by PodMonitor.

Two scrapes of one target differ only in the label ``job``. ``max by`` the labels that the program itself sets, and the
instance where these do not identify it, keeps one of the two.
"""

from typing import Final

CLUSTER: Final = 'cluster=~"$cluster"'
OBJECT: Final = f'{CLUSTER}, namespace=~"$namespace", name=~"$deployment"'
"""ModelDeployments, in metrics of the operator."""
RUNNER: Final = f'{CLUSTER}, namespace=~"$namespace", deployment=~"$deployment"'
"""ModelDeployments, in metrics of runners."""
NODE: Final = f'{CLUSTER}, node=~"$node"'
INTERVAL: Final = "$__rate_interval"
OF_A_RUNNER: Final = ("cluster", "namespace", "deployment", "group", "rank")
OF_A_TARGET: Final = ("cluster", "instance")


def _by(*labels: str) -> str:
    return f"by ({', '.join(dict.fromkeys(labels))})"


def _outer(how: str, inner: str, by: tuple[str, ...]) -> str:
    return f"{how} {_by(*by)} ({inner})" if by else f"{how}({inner})"


def latest(metric: str, match: str, *by: str) -> str:
    """The value of a gauge, by labels of the object that it is about."""
    return f"max {_by('cluster', *by)} ({metric}{{{match}}})"


def ratio(part: str, whole: str) -> str:
    """One value as a share of another."""
    return f"{part} / {whole}"


def since(moment: str) -> str:
    """Seconds since a time."""
    return f"time() - {moment}"


def total(metric: str, match: str, of: tuple[str, ...], *by: str) -> str:
    """A gauge, summed over the programs that export it."""
    return _outer("sum", f"max {_by(*of, *by)} ({metric}{{{match}}})", by)


def rate(metric: str, match: str, of: tuple[str, ...], *by: str, over: str = INTERVAL, how: str = "rate") -> str:
    """A counter's rate (or increase), summed over the programs that export it."""
    return _outer("sum", f"max {_by(*of, *by)} ({how}({metric}{{{match}}}[{over}]))", by)


def quantile(share: float, metric: str, match: str, of: tuple[str, ...], *by: str) -> str:
    """A quantile of a histogram, over all programs that export it."""
    return f"histogram_quantile({share:g}, {rate(f'{metric}_bucket', match, of, 'le', *by)})"

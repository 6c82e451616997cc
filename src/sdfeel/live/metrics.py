"""A node's status as metrics for Prometheus; not needed on a device."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

COUNTERS = {
    "results": "Results of clients that were kept.",
    "repeated": "Messages that came more than once, and changed nothing.",
    "rejected": "Models that did not pass the checks.",
    "dropped": "Clients without which a round was closed.",
    "withheld": "Averages that did not pass the checks, and were not kept.",
    "rounds_trained": "Rounds that this client has trained in.",
    "bytes": "Bytes of models sent and received.",
    "denied": "Calls with a certificate that is not accepted.",
    "refused": "Calls that were understood, but refused.",
    "busy": "Calls from nodes that had too many in progress.",
    "slow": "Calls that stalled or took too long.",
    "failed": "Calls that this node failed to handle.",
    "cut": "Connections that were ended because they were too many or denied.",
    "audit_lines": "Lines of the audit log.",
}
GAUGES = {
    "round": "Rounds finished.",
    "iterations": "Local iterations that this server counts.",
    "lag_seconds": "Seconds since the last progress.",
    "healthy": "1 if this node can do its part.",
    "over": "1 if all rounds are done.",
    "certificate_expiry_timestamp_seconds": "When this node's certificate expires.",
    "waiting_for": "Nodes that this one waits for.",
    "absent": "Nodes that this one continues without.",
    "guests": "Clients of other servers that work here.",
    "quarantined": "Nodes that are left out because of what they sent.",
}
OFFENCES = "How often each node sent what no honest node sends."


class _Told(Collector):
    """A status as metrics."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status
        labels, values = ["node", "role"], [str(status["name"]), str(status["role"])]
        known = {
            **status,
            "lag_seconds": status.get("lag"),
            "certificate_expiry_timestamp_seconds": status.get("certificate_expires"),
            "audit_lines": (status.get("audit") or {}).get("lines"),
        }
        for name, text in COUNTERS.items():
            if known.get(name) is not None:
                family = CounterMetricFamily(f"sdfeel_{name}", text, labels=labels)
                family.add_metric(values, _number(known[name]))
                yield family
        for name, text in GAUGES.items():
            if known.get(name) is not None:
                gauge = GaugeMetricFamily(f"sdfeel_{name}", text, labels=labels)
                gauge.add_metric(values, _number(known[name]))
                yield gauge
        offences: Mapping[str, int] = status.get("offences") or {}
        if offences:
            family = CounterMetricFamily("sdfeel_offences", OFFENCES, labels=[*labels, "offender"])
            for offender, times in offences.items():
                family.add_metric([*values, offender], times)
            yield family
        if status.get("version"):
            built = GaugeMetricFamily(
                "sdfeel_build_info", "The version of sdfeel.", labels=[*labels, "version"]
            )
            built.add_metric([*values, str(status["version"])], 1)
            yield built


def _number(value: Any) -> float:
    """A number as it is, a list by its length."""
    return float(len(value)) if isinstance(value, list) else float(value)


def metrics(status: Mapping[str, Any]) -> str:
    """The status as Prometheus text.

    >>> print(metrics({"name": "edge-0", "role": "edge", "round": 12345678}), end="")
    # HELP sdfeel_round Rounds finished.
    # TYPE sdfeel_round gauge
    sdfeel_round{node="edge-0",role="edge"} 1.2345678e+07
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Told(status))
    return generate_latest(registry).decode()


def process_metrics() -> str:
    """Memory, descriptors and processor time of this process as Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()

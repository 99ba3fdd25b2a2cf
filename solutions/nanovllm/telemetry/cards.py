"""What a GPU says of itself, among the server's metrics."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nanovllm.serving.registry import LABELS, Registry


@dataclass(frozen=True)
class CardState:
    """A card at one moment: share of the time in use, bytes, degrees Celsius."""

    use: float
    memory_used: int
    memory_total: int
    celsius: float


Reader = Callable[[], Sequence[CardState]]  # raises whatever it likes where it cannot read
GAUGES = {
    "use": ("gpu_utilization", "Share of the time in which a kernel ran, 0 to 1."),
    "memory_used": ("gpu_memory_used_bytes", "Memory in use, by whatever process."),
    "memory_total": ("gpu_memory_total_bytes", "Memory of the card."),
    "celsius": ("gpu_temperature_celsius", "Temperature of the chip."),
}


class CardMetrics(Collector):
    """Reads the cards at each scrape; a reading that fails counts as a card that was lost."""

    def __init__(self, registry: Registry, read: Reader) -> None:
        self.labels, self.read, self.lost = registry.labels, read, 0
        registry.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """A gauge of each kind, and the number of failed readings."""
        states: Sequence[CardState] = ()
        try:
            states = self.read()
        except Exception:  # a card that has fallen off the bus must not end a scrape
            self.lost += 1
        for field, (name, says) in GAUGES.items():
            gauge = GaugeMetricFamily(f"nanovllm:{name}", says, labels=(*LABELS, "gpu"))
            for number, state in enumerate(states):
                gauge.add_metric((*self.labels, str(number)), getattr(state, field))
            yield gauge
        lost = CounterMetricFamily(
            "nanovllm:gpu_lost", "Scrapes at which no card could be read.", labels=LABELS
        )
        lost.add_metric(self.labels, self.lost)
        yield lost


def nvml_reader() -> Reader | None:
    """Reads NVIDIA's cards of this machine; None where there are none, or no `nvidia-ml-py`."""
    with suppress(Exception):  # no library, no driver, no permission
        import pynvml

        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return (lambda: [_state(pynvml, handle) for handle in handles]) if handles else None
    return None


def _state(nvml: Any, handle: Any) -> CardState:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return CardState(
        nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
        int(memory.used),
        int(memory.total),
        nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
    )

"""What published traces look like: quantiles of lengths, and how requests arrive (given).

Computed from the published files: Azure's LLM inference traces of 2023 (code and conversation),
and Mooncake's conversation trace. Fitted to their means, and to what is known of how requests
arrive and come back: the lengths at 99.9 %, of Mooncake's all but p50 and p99, bursts, cycles and
sessions. The recorded requests themselves are not here.
"""

from dataclasses import dataclass

MARKS = (0.0, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 0.999, 1.0)


@dataclass(frozen=True)
class Shape:
    """What a generator needs to know.

    rate: requests a second, pauses included. prompts, outputs: tokens at MARKS. pause_share: of
    the time, nobody sends anything, in pauses of pause_mean seconds on average; pause_mean 0: there
    are none. burst_tail: requests come in bursts of k or more with probability k ** -burst_tail;
    what would be larger than burst_most counts as burst_most. burst_tail 0: each comes alone.
    burst_gap: mean seconds between requests of a burst; 0: they come at one moment. swing: the rate
    goes up and down by this share once in cycle_seconds of the time that is no pause. bundle:
    recorded times are cut to multiples of so many seconds; 0: they are not. follow_share: of the
    requests, those that go on with a session. think: mean seconds until somebody goes on. block:
    tokens of a block. common: blocks with which all prompts begin.
    """

    name: str
    rate: float
    prompts: tuple[float, ...]
    outputs: tuple[float, ...]
    pause_share: float = 0.0
    pause_mean: float = 0.0
    burst_tail: float = 0.0
    burst_most: int = 1
    burst_gap: float = 0.0
    swing: float = 0.0
    cycle_seconds: float = 3600.0
    bundle: float = 0.0
    follow_share: float = 0.0
    think: float = 30.0
    common: int = 0
    block: int = 512


AZURE_CODE = Shape(
    "azure-code",
    rate=2.6,
    prompts=(3, 75, 147, 578, 1469, 2744, 5187, 7303, 7436, 7437, 7437),
    outputs=(6, 6, 7, 9, 13, 24, 55, 90, 251, 420, 1899),
    pause_share=0.72,
    pause_mean=42.8,
    burst_tail=2.1,
    burst_most=56,
    burst_gap=0.003,
    swing=0.3,
    cycle_seconds=950.0,
)
AZURE_CONVERSATION = Shape(
    "azure-conversation",
    rate=5.5,
    prompts=(2, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 4400, 14050),
    outputs=(7, 41, 54, 85, 129, 395, 424, 451, 601, 640, 1000),
    swing=0.4,
)
MOONCAKE = Shape(
    "mooncake-conversation",
    rate=3.4,
    prompts=(890, 1200, 1600, 3400, 6909, 13000, 26000, 41000, 85400, 110000, 126000),
    outputs=(1, 10, 40, 210, 350, 430, 610, 740, 1118, 1400, 2000),
    burst_tail=3.0,
    burst_most=12,
    bundle=3.0,
    follow_share=0.9,
    think=150.0,
    common=1,
)
SHAPES = {shape.name: shape for shape in (AZURE_CODE, AZURE_CONVERSATION, MOONCAKE)}

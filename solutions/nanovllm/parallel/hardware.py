"""Cards, and links between them: published figures, and what two cores were measured at (given)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """What a message costs: `latency` seconds whatever its size, then `bytes_s` bytes a second."""

    latency: float
    bytes_s: float  # in each direction


# Bytes a second in one direction: NVIDIA's H100 datasheet (NVLink: 900 GB/s both ways together),
# PCI-SIG (16 lanes of 16 and 32 GT/s), and 100 Gbit. Seconds a message: NCCL's own table for a ring
# of its protocol LL128 (NVLINK, PCI, NET in `hwLat`, src/graph/tuning.cc, commit 01afd20a77b5).
# gloo: two processes on two cores; all-reduce of 4 KiB in 0.34 ms, of 2 MiB in 1.8 ms.
LINKS = {
    "nvlink": Link(1.9e-6, 450e9),
    "pcie5": Link(2.5e-6, 63e9),
    "pcie4": Link(2.5e-6, 31.5e9),
    "100gbe": Link(4.0e-6, 12.5e9),
    "gloo": Link(170e-6, 1.44e9),
}


@dataclass(frozen=True)
class Card:
    """What computes one rank's share: bytes and operations a second, and bytes of memory."""

    bytes_s: float
    flops_s: float
    memory: float


# NVIDIA's datasheets: H100 SXM, A100 SXM 80 GB, L4; dense products in bfloat16.
# core: one thread in float32, by decode steps of 184 million weights.
CARDS = {
    "h100": Card(3.35e12, 989e12, 80e9),
    "a100": Card(2.04e12, 312e12, 80e9),
    "l4": Card(300e9, 121e12, 24e9),
    "core": Card(19e9, 68e9, 4e9),
}


@dataclass(frozen=True)
class Cluster:
    """Nodes of `node_size` cards: one link between cards of a node, another between nodes."""

    card: Card
    inside: Link
    across: Link
    node_size: int = 8

    def link(self, ranks: int) -> Link:
        """The slowest link among so many neighbouring ranks.

        >>> cluster = Cluster(CARDS["h100"], LINKS["nvlink"], LINKS["100gbe"])
        >>> cluster.link(8) == LINKS["nvlink"], cluster.link(16) == LINKS["100gbe"]
        (True, True)
        """
        return self.inside if ranks <= self.node_size else self.across

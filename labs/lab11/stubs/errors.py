"""What can go wrong between engines, each said in one sentence (given)."""


class ClusterError(ValueError):
    """What was asked for does not fit: a name, a role, a budget, a version."""


class WireError(ClusterError):
    """Bytes that are not the K and V that were expected."""


class ForeignError(WireError):
    """Whole K and V, but of another model, shape or number format."""


class TransferError(RuntimeError):
    """K and V that somebody waits for will not come: unknown, expired, cut, or the peer is gone."""


class NoReplicaError(RuntimeError):
    """No replica can take a request now."""

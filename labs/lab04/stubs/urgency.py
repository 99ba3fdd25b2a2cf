"""What a caller may say about how urgent a request is, and who reads it (given)."""

import math
from typing import Any

from nanovllm.batching.policies import Policy
from nanovllm.generation.errors import RequestError

MOST = 2**63


def check_urgency(policy: Policy | None, priority: Any, deadline: Any) -> None:
    """Raise RequestError for a priority or deadline that means nothing, or that nobody reads.

    policy: None where it does not matter whether somebody does.

    >>> from nanovllm.batching.policies import make_policy
    >>> check_urgency(make_policy("fcfs"), 0, None)
    >>> check_urgency(make_policy("fcfs"), -1, None)
    Traceback (most recent call last):
    nanovllm.generation.errors.RequestError: priority is -1, but the scheduling policy here, fcfs, \
reads none; start the engine with scheduling_policy="priority", or leave it out.
    """
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise RequestError(f"priority must be a whole number, lower first; got {priority!r}.")
    if not -MOST <= priority < MOST:
        raise RequestError(f"priority must fit into 64 bits; got one of {priority.bit_length()}.")
    if deadline is not None:
        number = isinstance(deadline, int | float) and not isinstance(deadline, bool)
        if not number or not 0 < deadline < math.inf:
            raise RequestError(
                f"deadline must be seconds from now, above 0; got {deadline!r}. One in the past "
                "cannot be kept."
            )
    if policy is None:
        return
    for name, given, read, use in (
        ("priority", priority, policy.reads_priority, "priority"),
        ("deadline", deadline, policy.reads_deadline, "deadline"),
    ):
        if given not in (0, None) and not read:
            raise RequestError(
                f"{name} is {given}, but the scheduling policy here, {policy.name}, reads none; "
                f'start the engine with scheduling_policy="{use}", or leave it out.'
            )

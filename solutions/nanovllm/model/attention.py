"""Attention of T queries over S keys and values, the newest of which are the queries' own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nanovllm.model.config import ModelConfig

# attend(layer, q [T,H,D], k [T,G,D], v [T,G,D]) -> [T,H,D]: the one seam between the model and
# whatever stores K and V. The model hands over the step's own k and v; what else there is to
# look at, the attend knows.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


def causal_mask(
    num_queries: int,
    num_keys: int,
    window: int | None = None,
    device: torch.device | str = "cpu",
) -> Bool[Tensor, "T S"]:
    """Which keys each query may see: True where it may.

    The T queries are the last T of the S tokens (bottom-right alignment), so query t stands at
    position t + S - T and sees the keys up to there; with a window it sees only the last
    `window` of those, itself included.

    >>> causal_mask(2, 4).int()
    tensor([[1, 1, 1, 0],
            [1, 1, 1, 1]], dtype=torch.int32)
    >>> causal_mask(2, 4, window=2).int()
    tensor([[0, 1, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)
    """
    ### BEGIN SOLUTION
    query = torch.arange(num_queries, device=device)[:, None] + (num_keys - num_queries)
    key = torch.arange(num_keys, device=device)
    visible = key <= query
    if window is not None:
        visible &= key > query - window
    return visible
    ### END SOLUTION


def masked_softmax(
    scores: Float[Tensor, "... T S"], mask: Bool[Tensor, "T S"]
) -> Float[Tensor, "... T S"]:
    """Softmax over the visible keys, in float32; a row with no visible key is all zeros.

    The row's largest visible score is subtracted first, so that exp never overflows.

    >>> scores = torch.tensor([[1000.0, 1000.0, 5000.0], [7.0, 7.0, 7.0]])
    >>> masked_softmax(scores, torch.tensor([[True, True, False], [False, False, False]]))
    tensor([[0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 0.0000]])
    """
    ### BEGIN SOLUTION
    scores = scores.float().masked_fill(~mask, -torch.inf)
    top = scores.amax(dim=-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0.0)  # else -inf - -inf = nan in a blind row
    weights = torch.exp(scores - top)
    total = weights.sum(dim=-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1.0)
    ### END SOLUTION


def attention(
    q: Float[Tensor, "T H D"],
    k: Float[Tensor, "S G D"],
    v: Float[Tensor, "S G D"],
    scale: float | None = None,
    window: int | None = None,
    mask: Bool[Tensor, "T S"] | None = None,
) -> Float[Tensor, "T H D"]:
    """Grouped-query attention: softmax(scale * q k^T) v, causal unless a mask says otherwise.

    `scale` is 1 / sqrt(D) unless given. Query heads g*H/G .. (g+1)*H/G - 1 share key/value head
    g. Without a mask, `causal_mask(T, S, window)` applies; a given mask replaces it (and the
    window). A query that sees nothing gets zeros. The result has q's dtype.
    Source: Vaswani et al. 2017, equation 1; Ainslie et al. 2023 (GQA).

    >>> q = torch.zeros(1, 2, 4)  # equal scores: the mean of the visible values
    >>> k, v = torch.zeros(3, 1, 4), torch.arange(12.0).view(3, 1, 4)
    >>> attention(q, k, v)[0]
    tensor([[4., 5., 6., 7.],
            [4., 5., 6., 7.]])
    """
    ### BEGIN SOLUTION
    tokens, heads, dim = q.shape
    keys, groups, _ = k.shape
    if mask is None:
        mask = causal_mask(tokens, keys, window, q.device)
    q = q.reshape(tokens, groups, heads // groups, dim)  # [T, G, H/G, D]
    scores = torch.einsum("tgrd,sgd->grts", q, k) * (dim**-0.5 if scale is None else scale)
    weights = masked_softmax(scores, mask).to(v.dtype)
    return torch.einsum("grts,sgd->tgrd", weights, v).reshape(tokens, heads, dim)
    ### END SOLUTION


class RecomputeAttend:
    """No cache: the step's T tokens are the whole sequence, and attend to one another."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def __call__(
        self,
        layer: int,
        q: Float[Tensor, "T H D"],
        k: Float[Tensor, "T G D"],
        v: Float[Tensor, "T G D"],
    ) -> Float[Tensor, "T H D"]:
        return attention(q, k, v, window=self.config.window(layer))

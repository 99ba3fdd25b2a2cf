"""Attention of T queries over S keys and values, the newest of which are the queries' own."""

### BEGIN SOLUTION
import torch
from jaxtyping import Bool, Float
from torch import Tensor


def causal_mask(
    num_queries: int, num_keys: int, window: int | None = None, device: torch.device | str = "cpu"
) -> Bool[Tensor, "T S"]:
    """Which keys each query may see; the T queries are the last T of the S tokens.

    >>> causal_mask(2, 4).int()
    tensor([[1, 1, 1, 0],
            [1, 1, 1, 1]], dtype=torch.int32)
    >>> causal_mask(2, 4, window=2).int()
    tensor([[0, 1, 1, 0],
            [0, 0, 1, 1]], dtype=torch.int32)
    """
    query = torch.arange(num_queries, device=device)[:, None] + (num_keys - num_queries)
    key = torch.arange(num_keys, device=device)
    visible = key <= query
    if window is not None:
        visible &= key > query - window
    return visible


def masked_softmax(
    scores: Float[Tensor, "... T S"], mask: Bool[Tensor, "T S"]
) -> Float[Tensor, "... T S"]:
    """Softmax over the visible keys; a row with no visible key is all zeros.

    >>> scores = torch.tensor([[1000.0, 1000.0, 5000.0], [7.0, 7.0, 7.0]])
    >>> masked_softmax(scores, torch.tensor([[True, True, False], [False, False, False]]))
    tensor([[0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 0.0000]])
    """
    scores = scores.masked_fill(~mask, -torch.inf)
    top = scores.amax(dim=-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0.0)  # else -inf - -inf = nan in a blind row
    weights = torch.exp(scores - top)
    total = weights.sum(dim=-1, keepdim=True)
    return weights / total.masked_fill(total == 0, 1.0)


def attention(
    q: Float[Tensor, "T H D"],
    k: Float[Tensor, "S G D"],
    v: Float[Tensor, "S G D"],
    scale: float | None = None,
    window: int | None = None,
    mask: Bool[Tensor, "T S"] | None = None,
) -> Float[Tensor, "T H D"]:
    """Grouped-query attention: softmax(scale * q k^T) v, causal unless a mask says otherwise.

    Source: Vaswani et al. 2017, equation 1; Ainslie et al. 2023 (GQA).

    >>> q = torch.zeros(1, 2, 4)  # equal scores: the mean of the visible values
    >>> k, v = torch.zeros(3, 1, 4), torch.arange(12.0).view(3, 1, 4)
    >>> attention(q, k, v)[0]
    tensor([[4., 5., 6., 7.],
            [4., 5., 6., 7.]])
    """
    tokens, heads, dim = q.shape
    keys, groups, _ = k.shape
    if mask is None:
        mask = causal_mask(tokens, keys, window, q.device)
    grouped = q.float().reshape(tokens, groups, heads // groups, dim)  # [T, G, H/G, D]
    scores = torch.einsum("tgrd,sgd->grts", grouped, k.float())
    weights = masked_softmax(scores * (dim**-0.5 if scale is None else scale), mask)
    out = torch.einsum("grts,sgd->tgrd", weights, v.float())
    return out.reshape(tokens, heads, dim).to(q.dtype)


### END SOLUTION

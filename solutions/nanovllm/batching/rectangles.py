"""`attend_rectangle`: attention of a few rows at once, over as many places each (given)."""

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend_rectangle(
    q: Float[Tensor, "N T H D"],
    k: Float[Tensor, "N S G D"],
    v: Float[Tensor, "N S G D"],
    visible: Bool[Tensor, "N T S"],
) -> Float[Tensor, "N T H D"]:
    """N rows with T queries each; a row's queries look at the S places of its own k and v.

    visible: which of these places each query may see, at least one. A place that is hidden has a
    weight of 0, and 0 times NaN is NaN.

    >>> import torch
    >>> q, places = torch.zeros(2, 1, 4, 1), torch.tensor([[1.0, 3.0], [5.0, 9.0]])
    >>> k = v = places[:, :, None, None].expand(2, 2, 2, 1)
    >>> attend_rectangle(q, k, v, torch.tensor([[[True, True]], [[True, False]]]))[:, 0, 0, 0]
    tensor([2., 5.])
    """
    rows, queries, _, dim = q.shape
    if queries == 1:  # the query heads of a group as queries of one head: no key is read twice
        out = scaled_dot_product_attention(
            q.reshape(rows, k.shape[2], -1, dim),  # [N, G, H/G, D]
            k.transpose(1, 2),  # [N, G, S, D]
            v.transpose(1, 2),
            attn_mask=visible[:, None],
        )
        return out.reshape(q.shape)
    out = scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)),  # [N, H or G, T or S, D]
        attn_mask=visible[:, None],
        enable_gqa=True,
    )
    return out.transpose(1, 2)

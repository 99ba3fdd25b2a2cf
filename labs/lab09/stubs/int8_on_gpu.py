"""Products of int8 on a GPU, for any shape (given)."""

from jaxtyping import Int8, Int32
from torch import Tensor, _int_mm  # pyright: ignore[reportPrivateImportUsage]  # it has no public name
from torch.nn.functional import pad


def padded_int_mm(a: Int8[Tensor, "T K"], b: Int8[Tensor, "N K"]) -> Int32[Tensor, "T N"]:
    """a b^T. torch's product wants 17 rows or more there, and multiples of 8 elsewhere: the rest
    is filled up with zeros."""
    (rows, inner), columns = a.shape, len(b)
    more_inner, more_columns = -inner % 8, -columns % 8
    wide_a = pad(a, (0, more_inner, 0, max(17 - rows, 0)))
    wide_b = pad(b, (0, more_inner, 0, more_columns))
    return _int_mm(wide_a, wide_b.t())[:rows, :columns]

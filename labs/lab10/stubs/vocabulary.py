"""The two matrices with a row for each token of the vocabulary: each rank has some of the rows."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from nanovllm.parallel.collectives import all_reduce, gather_last
from nanovllm.parallel.communicator import Communicator
from nanovllm.parallel.linears import Tensors, frozen
from nanovllm.parallel.shards import share


class VocabParallelEmbedding(nn.Module):
    """`VocabParallelEmbedding(comm, vocab_size, hidden_size)`: token ids [T] to [T, E].

    The rank has the rows `share(vocab_size, comm.size, comm.rank)`, perhaps none; all ranks get the
    row of each token, by one all-reduce. Parameter: `weight` [V', E], which is not trained.

    `load(tensors, name)` fills it from `name.weight` [V, E], of which it reads the rank's rows
    alone.

    >>> import torch
    >>> from nanovllm.parallel.stored import Reads, StoredTensor
    >>> from nanovllm.parallel.threads import run_ranks
    >>> def work(comm):
    ...     embedding = VocabParallelEmbedding(comm, vocab_size=3, hidden_size=1)
    ...     rows = StoredTensor(torch.tensor([[5.0], [6.0], [7.0]]), Reads())
    ...     embedding.load({"embed_tokens.weight": rows}, "embed_tokens")
    ...     return embedding(torch.tensor([2, 0])).tolist()
    >>> run_ranks(2, work)
    [[[7.0], [5.0]], [[7.0], [5.0]]]
    """

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("lab10 task 3: VocabParallelEmbedding")


def parallel_logits(
    comm: Communicator,
    hidden: Float[Tensor, "N E"],
    weight: Float[Tensor, "M E"],
    vocab_size: int,
) -> Float[Tensor, "N V"]:
    """The scores of all tokens on every rank, of which each computes its own; one `gather_last`.

    `weight` has the rank's rows, `share(vocab_size, comm.size, comm.rank)`, of the embedding or of
    the head.

    >>> import torch
    >>> from nanovllm.parallel.threads import run_ranks
    >>> heads = [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]])]
    >>> hidden = torch.tensor([[1.0], [10.0]])
    >>> run_ranks(2, lambda comm: parallel_logits(comm, hidden, heads[comm.rank], 3).tolist())
    [[[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]], [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]]
    """
    raise NotImplementedError("lab10 task 3: parallel_logits")

"""The whole model: embed, L blocks, a last norm; logits only for the rows that need them."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from nanovllm.model.attention import Attend
from nanovllm.model.block import DecoderBlock
from nanovllm.model.config import ModelConfig
from nanovllm.model.registry import FAMILIES


class Transformer(nn.Module):
    """A decoder that does not know how K and V are stored: it calls `attend` for that."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        family = FAMILIES[config.family]
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = family.positions(config)
        self.layers = nn.ModuleList(
            DecoderBlock(config, layer) for layer in range(config.num_layers)
        )
        self.norm = family.norm(config.hidden_size, config.norm_eps)
        # A tied model has no output matrix of its own: the embedding serves twice.
        if not config.tie_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self, token_ids: Int[Tensor, "T"], positions: Int[Tensor, "T"], attend: Attend
    ) -> Float[Tensor, "T E"]:
        """The last hidden states, after the last norm, of T tokens at the given positions.

        The tokens may be a prompt, a chunk of one, a single new token, or (from lab 04 on) those
        of several requests: every row is worked on alone, but in `attend`.

        >>> import torch
        >>> from nanovllm.model.attention import RecomputeAttend
        >>> model = Transformer(ModelConfig("qwen3", 9, 4, 1, 2, 1, 6, 8, 16, qk_norm=True))
        >>> ids, positions = torch.tensor([1, 2, 3]), torch.arange(3)
        >>> model(ids, positions, RecomputeAttend(model.config)).shape
        torch.Size([3, 4])
        """
        ### BEGIN SOLUTION
        x = self.positions.embed(self.embed_tokens(token_ids), positions)
        rotation = self.positions.rotation(positions)
        for layer in self.layers:
            x = layer(x, rotation, attend)
        return self.norm(x)
        ### END SOLUTION

    def logits(self, hidden: Float[Tensor, "N E"]) -> Float[Tensor, "N V"]:
        """The score of each token of the vocabulary, for N rows of `forward`'s result.

        With `config.tie_embeddings` the output matrix is that of the embedding [V, E].

        >>> import torch
        >>> model = Transformer(ModelConfig("llama", 9, 4, 1, 2, 2, 2, 8, 16, tie_embeddings=True))
        >>> model.logits(torch.ones(2, 4)).shape
        torch.Size([2, 9])
        """
        ### BEGIN SOLUTION
        head = self.embed_tokens if self.config.tie_embeddings else self.lm_head
        return nn.functional.linear(hidden, head.weight)
        ### END SOLUTION

"""The decoder of transformers, whose attention asks the course's `attend` for K and V."""

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModel,
    PreTrainedConfig,
)

from nanovllm.model.attend import Attend
from nanovllm.model.config import ModelConfig

ORDER = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")  # of lab 02's blocks


class Transformer(nn.Module):
    """A model of transformers behind the interface of lab 02."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        theirs = AutoModel.from_config(_their_config(config), attn_implementation="attend")
        self._theirs = theirs.forward
        self.embed_tokens = theirs.get_input_embeddings()
        for name, module in theirs.named_children():
            if name == "rotary_emb":  # its frequencies are no weights: a meta device loses them
                with torch.device("cpu"):
                    theirs.rotary_emb = type(module)(theirs.config)
            elif module is not self.embed_tokens:
                setattr(self, name, module)
        for layer in getattr(self, "layers", ()):
            layer._modules = {name: layer._modules[name] for name in ORDER}
        if not config.tie_embeddings:
            self.lm_head = nn.Linear(*self.embed_tokens.weight.T.shape, bias=False)

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states [T, E] after the last norm."""
        out = self._theirs(
            token_ids[None], position_ids=positions[None], use_cache=False, attend=attend
        )
        return out.last_hidden_state[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [N, V]."""
        outputs = getattr(self, "lm_head", self.embed_tokens).weight
        return hidden @ outputs.T


def _their_config(config: ModelConfig) -> PreTrainedConfig:
    return AutoConfig.for_model(
        config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        n_inner=config.intermediate_size,
        max_position_embeddings=config.max_position,
        rms_norm_eps=config.norm_eps,
        layer_norm_epsilon=config.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=config.tie_embeddings,
        attention_bias=config.output_bias,
    )


def _attend(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: None, *, attend: Attend, **_: object
) -> tuple[Tensor, None]:
    ragged = (x[0].transpose(0, 1) for x in (q, k, v))
    return attend(module.layer_idx, *ragged)[None], None


AttentionInterface.register("attend", _attend)
AttentionMaskInterface.register("attend", lambda *_, **__: None)

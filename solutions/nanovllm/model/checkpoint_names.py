"""What checkpoints call their tensors, and which tensors of the `Transformer` those fill."""

### BEGIN SOLUTION
from collections.abc import Iterator

from torch import Tensor

# Buffers that some checkpoints store and no model needs.
ROPE_FREQUENCIES = ".rotary_emb.inv_freq"
GPT2_MASKS = (".attn.bias", ".attn.masked_bias")

GPT2_OUTSIDE = {
    "wte.weight": "embed_tokens.weight",
    "wpe.weight": "positions.weight",
    "ln_f.weight": "norm.weight",
    "ln_f.bias": "norm.bias",
}
GPT2_IN_A_LAYER = {
    "ln_1": "input_layernorm",
    "ln_2": "post_attention_layernorm",
    "attn.c_proj": "self_attn.o_proj",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
}


def module_tensors(family: str, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The engine's tensors (none, one, or q, k and v) that one checkpoint tensor fills.

    >>> import torch
    >>> [name for name, _ in module_tensors("qwen3", "model.norm.weight", torch.ones(4))]
    ['norm.weight']
    >>> for name, part in module_tensors("gpt2", "h.3.attn.c_attn.weight", torch.zeros(4, 12)):
    ...     print(name, list(part.shape))
    layers.3.self_attn.q_proj.weight [4, 4]
    layers.3.self_attn.k_proj.weight [4, 4]
    layers.3.self_attn.v_proj.weight [4, 4]
    """
    if family == "gpt2":
        yield from gpt2_tensors(name.removeprefix("transformer."), tensor)
    elif not name.endswith(ROPE_FREQUENCIES):
        yield name.removeprefix("model."), tensor


def gpt2_tensors(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """GPT-2 has names of its own, matrices stored [in, out], and q, k, v side by side."""
    if name.endswith(GPT2_MASKS):
        return
    if not name.startswith("h."):
        yield GPT2_OUTSIDE.get(name, name), tensor
        return
    _, layer, rest = name.split(".", 2)
    part, _, kind = rest.rpartition(".")  # ("attn.c_attn", "weight")
    if part != "attn.c_attn" and part not in GPT2_IN_A_LAYER:
        yield name, tensor
        return
    if tensor.ndim == 2:
        tensor = tensor.T.contiguous()
    if part == "attn.c_attn":
        for letter, value in zip("qkv", tensor.chunk(3), strict=True):
            yield f"layers.{layer}.self_attn.{letter}_proj.{kind}", value.contiguous()
    else:
        yield f"layers.{layer}.{GPT2_IN_A_LAYER[part]}.{kind}", tensor


### END SOLUTION

"""What checkpoints call their tensors, and what this engine calls them (given)."""

from collections.abc import Iterator

from torch import Tensor

# Buffers that some checkpoints store and no model needs: RoPE's frequencies, GPT-2's causal mask.
_NOT_WEIGHTS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")

_GPT2 = {
    "wte.weight": "embed_tokens.weight",
    "wpe.weight": "positions.weight",
    "ln_f.": "norm.",
    "h.": "layers.",
    ".ln_1.": ".input_layernorm.",
    ".ln_2.": ".post_attention_layernorm.",
    ".attn.c_proj.": ".self_attn.o_proj.",
    ".mlp.c_fc.": ".mlp.up_proj.",
    ".mlp.c_proj.": ".mlp.down_proj.",
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
    if name.endswith(_NOT_WEIGHTS):
        return
    if family != "gpt2":
        yield name.removeprefix("model."), tensor
        return
    name = name.removeprefix("transformer.")
    if tensor.ndim == 2 and name.startswith("h."):
        tensor = tensor.T.contiguous()  # GPT-2's Conv1D stores [in, out], nn.Linear [out, in]
    if ".attn.c_attn." in name:
        layer, kind = name.split(".")[1], name.split(".")[-1]
        for part, value in zip("qkv", tensor.chunk(3, dim=0), strict=True):
            yield f"layers.{layer}.self_attn.{part}_proj.{kind}", value.contiguous()
        return
    for theirs, ours in _GPT2.items():
        if name.startswith(theirs) or theirs.startswith("."):
            name = name.replace(theirs, ours, 1)
    yield name, tensor

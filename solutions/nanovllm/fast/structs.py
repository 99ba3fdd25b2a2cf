"""The structs of `native/model.h`, as ctypes sees them."""

from ctypes import POINTER, Structure, c_float, c_int32, c_void_p


class Matrix(Structure):
    """A packed weight matrix; see `matrix.h`."""

    _fields_ = [
        *[(name, c_void_p) for name in ("data", "bias", "scales")],
        *[(name, c_int32) for name in ("columns", "inner", "bits", "block", "middle", "by_row")],
    ]


class Norm(Structure):
    """The weight of a norm, and the bias of a LayerNorm."""

    _fields_ = [("weight", c_void_p), ("bias", c_void_p)]


class Layer(Structure):
    """One layer's weights."""

    _fields_ = [
        ("input", Norm),
        ("post_attention", Norm),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("qkv", Matrix),
        ("output", Matrix),
        ("up", Matrix),
        ("down", Matrix),
        ("window", c_int32),
        ("router", Matrix),
        ("experts", POINTER(Matrix)),
    ]


class Model(Structure):
    """A model's sizes and weights."""

    _fields_ = [
        ("layers", POINTER(Layer)),
        *[
            (name, c_int32)
            for name in (
                "num_layers",
                "hidden",
                "num_heads",
                "num_kv_heads",
                "head_dim",
                "padded_dim",
                "vocab",
                "gated",
                "layer_norm",
                "quantized",
                "num_experts",
                "per_token",
                "normalize",
                "shared",
                "widest",
            )
        ],
        ("eps", c_float),
        ("embedding", c_void_p),
        ("positions", c_void_p),
        ("cosine", c_void_p),
        ("sine", c_void_p),
        ("norm", Norm),
        ("head", Matrix),
    ]


class Step(Structure):
    """One step's tokens, and where its K, V and results are."""

    _fields_ = [
        *[
            (name, c_int32)
            for name in ("num_seqs", "num_outputs", "num_blocks", "block_size", "num_threads")
        ],
        *[
            (name, c_void_p)
            for name in (
                "token_ids",
                "query_starts",
                "context_lens",
                "completes",
                "blocks",
                "block_starts",
                "k",
                "v",
                "k_scales",
                "v_scales",
                "logits",
                "tokens",
            )
        ],
    ]

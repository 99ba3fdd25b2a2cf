"""llama.cpp as a contestant, run by the Python of an environment with llama-cpp-python and gguf.

`llama_peer.py q8_0` answers on its pipe; `llama_peer.py make FOLDER q8_0` only writes the file of
weights, which else the first start does. Formats are gguf's names, or `as-it-is`: the dtype asked.
"""

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from nanovllm.bench.loop import serve

TENSORS = {  # of a decoder layer, by their names in checkpoints
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
CHUNK = 512  # tokens of prompts in one call: llama.cpp's own default


def file_of(folder: str, kind: str) -> Path:
    """The weights of a Qwen3 folder as GGUF, made when first asked for and when they change."""
    own = [
        (str(each), each.stat().st_mtime_ns) for each in sorted(Path(folder).resolve().iterdir())
    ]
    digest = hashlib.sha256(repr(("with its vocabulary", own)).encode()).hexdigest()[:12]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nanovllm" / "gguf"
    file = home / f"{Path(folder).name}-{kind}-{digest}.gguf"
    if not file.is_file():
        home.mkdir(parents=True, exist_ok=True)
        write(Path(folder), kind, file.with_suffix(".part"))
        file.with_suffix(".part").rename(file)
    return file


def write(folder: Path, kind: str, to: Path) -> None:
    """Matrices of the decoder and the embedding in this format, norms in float32."""
    import json

    import gguf
    import torch
    from safetensors import safe_open

    config = json.loads((folder / "config.json").read_text())
    out = gguf.GGUFWriter(to, "qwen3")
    out.add_vocab_size(config["vocab_size"])
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(config["head_dim"])
    out.add_value_length(config["head_dim"])
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    out.add_rope_freq_base(theta)
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    _add_vocabulary(out, folder, config)
    type_ = gguf.GGMLQuantizationType[kind.upper()]
    for part in sorted(folder.glob("*.safetensors")):
        with safe_open(part, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a dict
                weight = tensors.get_tensor(name).to(torch.float32).numpy()
                its = type_ if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
                out.add_tensor(_named(name), gguf.quants.quantize(weight, its), raw_dtype=its)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def _add_vocabulary(out: Any, folder: Path, config: dict[str, Any]) -> None:
    """A byte-level BPE's, for those who give text; some folders of random weights have none."""
    import json

    import gguf

    if not (folder / "tokenizer.json").is_file():
        out.add_tokenizer_model("no_vocab")
        return
    told = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    special = {token["id"]: token["content"] for token in told["added_tokens"]}
    known = {id_: token for token, id_ in told["model"]["vocab"].items()} | special
    ids = range(config["vocab_size"])
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list([known.get(id_, f"<unused {id_}>") for id_ in ids])
    types = gguf.TokenType
    out.add_token_types(
        [
            types.CONTROL if id_ in special else types.NORMAL if id_ in known else types.UNUSED
            for id_ in ids
        ]
    )
    merges = told["model"]["merges"]
    out.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    if config["eos_token_id"] is not None:
        out.add_eos_token_id(config["eos_token_id"])
    out.add_add_bos_token(False)


def _named(name: str) -> str:
    module = name.removesuffix(".weight")
    if module in WHOLE:
        return f"{WHOLE[module]}.weight"
    _, _, number, inner = module.split(".", 3)
    return f"blk.{number}.{TENSORS[inner]}.weight"


class Llama:
    """llama.cpp's own batches, by its C interface: a token of every request in each call."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def load(
        self, model: str, dtype: str, threads: int, max_model_len: int, max_num_seqs: int
    ) -> dict[str, Any]:
        from importlib.metadata import version

        import llama_cpp

        self.lib = llama_cpp
        as_it_is = {"bfloat16": "bf16", "float32": "f32"}[dtype]
        kind = as_it_is if self.kind == "as-it-is" else self.kind
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        weights = llama_cpp.llama_model_load_from_file(str(file_of(model, kind)).encode(), params)
        if not weights:
            raise RuntimeError(f"llama.cpp could not read {file_of(model, kind)}; see what it said")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = max_model_len * max_num_seqs
        context.n_seq_max = max_num_seqs
        context.n_batch = max(CHUNK, max_num_seqs)
        context.n_threads = context.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(weights, context)
        if not self.context:
            raise RuntimeError("llama.cpp could not make a context; see what it said")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(weights))
        self.batch = llama_cpp.llama_batch_init(context.n_batch, 0, 1)
        self.room = context.n_batch
        return {"llama-cpp-python": version("llama-cpp-python"), "format": kind}

    def settle(self) -> None:
        pass

    def run(self, jobs: list[dict[str, Any]]) -> list[list[int]]:
        import numpy as np

        lib = self.lib
        lib.llama_memory_clear(self.memory, True)
        texts: list[list[int]] = [[] for _ in jobs]
        # (request, token, position, whether its logits are wanted), prompts one after another
        waiting = [
            (number, token, place, place == len(job["prompt"]) - 1)
            for number, job in enumerate(jobs)
            for place, token in enumerate(job["prompt"])
        ]
        while waiting:
            now, waiting = waiting[: self.room], waiting[self.room :]
            for place, (number, token, position, wanted) in enumerate(now):
                self.batch.token[place], self.batch.pos[place] = token, position
                self.batch.n_seq_id[place], self.batch.seq_id[place][0] = 1, number
                self.batch.logits[place] = wanted
            self.batch.n_tokens = len(now)
            if code := lib.llama_decode(self.context, self.batch):
                raise RuntimeError(f"llama_decode gave {code}")
            following = []
            for place, (number, _, position, wanted) in enumerate(now):
                if not wanted:
                    continue
                logits = np.ctypeslib.as_array(
                    lib.llama_get_logits_ith(self.context, place), (self.vocab,)
                )
                texts[number].append(int(logits.argmax()))
                if len(texts[number]) < jobs[number]["max_tokens"]:
                    following.append((number, texts[number][-1], position + 1, True))
            waiting = following + waiting  # who has begun goes on; prompts fill the rest
        return texts


if __name__ == "__main__":
    if sys.argv[1] == "make":
        print(file_of(*sys.argv[2:]))
    else:
        serve(Llama(sys.argv[1]))

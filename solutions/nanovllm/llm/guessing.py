"""Lab 08 on any engine: what `speculative_config` asks for, read and put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from nanovllm.batching.engine import Engine
from nanovllm.generation.request import weight_of
from nanovllm.llm.engine_options import EngineOptions
from nanovllm.llm.kv_codes import token_bytes
from nanovllm.llm.lab_packages import is_mine, why_missing
from nanovllm.llm.read_options import OptionError, say
from nanovllm.llm.scoring import scoring
from nanovllm.llm.weight_codes import load_weights
from nanovllm.model.errors import ModelFolderError
from nanovllm.model.loader import resolve_folder
from nanovllm.model.transformer import Transformer
from nanovllm.tokenization.errors import TokenizerError
from nanovllm.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:  # lab 08 may not be here
    from nanovllm.speculative.config import SpeculativeConfig
    from nanovllm.speculative.costs import Costs
    from nanovllm.speculative.credit import Credit
    from nanovllm.speculative.guess_policy import GuessPolicy
    from nanovllm.speculative.proposer import Proposer
    from nanovllm.speculative.verify import Judge


@dataclass(frozen=True)
class NoGuesses:
    """Without a speculative_config every engine is as it is."""

    def on(self, engine: type[Engine]) -> Callable[..., Engine]:
        """The class itself, which also scores prompts."""
        return cast("type[Engine]", scoring(engine))


@dataclass(frozen=True)
class Guessing:
    """Guesses for the requests to a model."""

    config: SpeculativeConfig
    make_draft: Callable[[], Engine] | None

    def on(self, engine: type[Engine]) -> Callable[..., Engine]:
        """What makes such an engine, with guesses."""
        from nanovllm.speculative.costs import Costs

        most, costs = self.config.num_speculative_tokens, Costs()
        facts = {"num_speculative_tokens": most}  # a server asks
        kind: Any = scoring(
            type(f"Speculative{engine.__name__}", (_verifier(engine), engine), facts)
        )
        credit = self._credit()
        proposer, policy = self._guessers(most, costs, credit)
        parts = {
            "proposer": proposer,
            "guess_policy": policy,
            "costs": costs,
            "credit": credit,
            "judge": self._judge(),
            "warn": say,
        }
        return lambda *args, **settings: kind(*args, **parts, **settings)

    # A student may have written only some of what follows: what is not asked for is not imported.

    def _credit(self) -> Credit | None:
        if not self.config.adaptive:
            return None
        from nanovllm.speculative.credit import Credit
        from nanovllm.speculative.two_policies import SOURCES

        return Credit(sources=SOURCES) if self.config.method == "ngram_then_draft" else Credit()

    def _guessers(
        self, most: int, costs: Costs, credit: Credit | None
    ) -> tuple[Proposer, GuessPolicy]:
        """Who guesses, and who says how many."""
        config, made = self.config, []
        if config.method != "draft_model":
            from nanovllm.speculative.lookup import PromptLookup

            made.append(PromptLookup(config.prompt_lookup_min, config.prompt_lookup_max))
        if self.make_draft is not None:
            sampled = config.draft_sample_method == "gumbel"
            standard = config.rejection_sample_method == "standard"
            draft = self.make_draft()
            made.append(_drafter(draft)(draft, sampled=sampled, with_probs=standard))
        if not config.adaptive:
            from nanovllm.speculative.guess_policy import FixedPolicy
            from nanovllm.speculative.proposer import NgramThenDraft

            return made[0] if len(made) == 1 else NgramThenDraft(*made), FixedPolicy(most)
        from nanovllm.speculative.adaptive import AdaptivePolicy
        from nanovllm.speculative.two_policies import TwoPolicies, WantedOfEach

        if len(made) == 1:
            return made[0], AdaptivePolicy(most, costs)
        policy = TwoPolicies(partial(AdaptivePolicy, most), costs, credit)
        lookup, draft = made
        return WantedOfEach(lookup, draft, policy), policy

    def _judge(self) -> Judge | None:
        if self.config.rejection_sample_method != "standard":
            return None
        from nanovllm.speculative.judge import judge

        return judge


# The compiled step has given classes that do the same faster; they make way for a student's own.


def _verifier(engine: type[Engine]) -> type:
    if hasattr(engine, "guess") and not is_mine("speculative"):
        from nanovllm.fast.speculative import FastSpeculativeEngine

        return FastSpeculativeEngine
    from nanovllm.speculative.verify import SpeculativeEngine

    return SpeculativeEngine


def _drafter(engine: Engine) -> type:
    if hasattr(engine, "guess") and not is_mine("speculative"):
        from nanovllm.fast.speculative import FastDraft

        return FastDraft
    from nanovllm.speculative.draft_model import DraftModel

    return DraftModel


def speculation(
    model: Transformer,
    max_model_len: int,
    options: EngineOptions,
    tokenizer: Tokenizer | None = None,
) -> NoGuesses | Guessing:
    """What the options ask for. Raises OptionError, before any request is taken on."""
    config = read_config(options)
    if config is None:
        return NoGuesses()
    places, most = _places(model, max_model_len, options), config.num_speculative_tokens
    if 1 + most > min(places, max_model_len - 1):
        raise OptionError(
            f"num_speculative_tokens is {most}, but a token and its guesses must fit into "
            f"{min(places, max_model_len - 1)} places of the KV cache; use fewer."
        )
    if not config.drafts:
        return Guessing(config, None)
    draft = load_draft(config, model, max_model_len, tokenizer)
    return Guessing(config, lambda: _draft_engine(draft, max_model_len, options))


def read_config(options: EngineOptions) -> SpeculativeConfig | None:
    """The settings, checked; None where guesses are off. Raises OptionError."""
    if options.speculative_config is None:
        return None
    why = why_missing("lab08")
    if why is not None:
        raise OptionError(f"speculative_config needs lab08 (speculative): {why}")
    from nanovllm.speculative.config import read_speculative_config
    from nanovllm.speculative.errors import SpeculationError

    try:
        return read_speculative_config(options.speculative_config)
    except SpeculationError as error:
        raise OptionError(str(error)) from None


def load_draft(
    config: SpeculativeConfig, model: Transformer, max_model_len: int, tokenizer: Tokenizer | None
) -> Transformer:
    """The draft model, in the target's dtype and place. Raises OptionError if it cannot serve."""
    weight = weight_of(model)
    try:
        folder = resolve_folder(cast(str, config.model))
        draft = load_weights(folder, weight.dtype, weight.device)
        file = folder / "tokenizer.json"
        theirs = Tokenizer.from_file(file) if file.is_file() else None
    except (ModelFolderError, TokenizerError) as error:
        raise OptionError(f"The draft model {config.model!r} cannot be loaded: {error}") from error
    if draft.config.vocab_size != model.config.vocab_size:
        raise OptionError(
            f"The draft model has {draft.config.vocab_size} tokens, the target "
            f"{model.config.vocab_size}: guesses would mean something else; use a draft with the "
            "target's tokenizer."
        )
    if tokenizer and theirs and _tokens(theirs) != _tokens(tokenizer):
        raise OptionError(
            f"The draft model {config.model!r} has another tokenizer than the target: guesses "
            "would mean something else; use a draft with the target's tokenizer."
        )
    ends = set(draft.config.eos_token_ids)
    if not ends <= set(model.config.eos_token_ids):
        raise OptionError(
            f"The draft model ends texts with tokens {sorted(ends)}, the target with "
            f"{sorted(model.config.eos_token_ids)}; use a draft with the target's tokenizer."
        )
    if draft.config.max_position < max_model_len:
        say(
            f"the draft model was made for {draft.config.max_position} tokens, the target's "
            f"context is {max_model_len}: longer texts go on without its guesses"
        )
    return draft


def _tokens(tokenizer: Tokenizer) -> tuple[object, ...]:
    return tokenizer.model.vocab, tokenizer.special_ids


def _places(model: Transformer, max_model_len: int, options: EngineOptions) -> int:
    weight = weight_of(model)
    per_token = token_bytes(model.config, weight.element_size(), options)
    return options.num_blocks(max_model_len, per_token, weight.device) * options.block_size


def _draft_engine(draft: Transformer, max_model_len: int, options: EngineOptions) -> Engine:
    """An engine for the draft's forwards, of the same kind as the target's where that can be."""
    from nanovllm.llm.paged_engines import make_engine

    longest = min(max_model_len, draft.config.max_position)
    alone = replace(options, speculative_config=None, num_gpu_blocks_override=None, swap_space=0)
    if weight_of(draft).device.type == "cuda":  # its graphs decode one token a request
        alone = replace(alone, enforce_eager=True)
    return make_engine(draft, None, longest, alone)

"""Questions to guess at before lab 08 is written; your own code answers them."""

from grader.student.predict import Question


def found_by_lookup() -> float:
    from nanovllm.batching.request import Request
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sequence import Sequence
    from nanovllm.speculative.lookup import PromptLookup
    from nanovllm.speculative.proposer import Ask

    tokens = [1, 5, 6, 7, 8, 9, 6, 2, 5, 6]
    request = Request(0, Sequence(tokens, SamplingParams(), max_model_len=64, seed=0), 0.0, 64)
    [guesses] = PromptLookup(1, 3).propose([Ask(request, 1)])
    return guesses.token_ids[0]


def steps_when_always_right() -> float:
    engine, _ = _drafted(count=1, tokens=41)
    steps = 0
    while engine.has_unfinished:
        engine.step()
        steps += 1
    return steps


def forwards_of_a_step() -> float:
    engine, draft = _drafted(count=5, tokens=30)
    engine.step()
    before = draft.num_forwards
    engine.step()
    return draft.num_forwards - before


def _drafted(count: int, tokens: int) -> tuple:
    """An engine whose draft model is the target itself, and some requests in it."""
    from nanovllm.batching.engine import Engine
    from nanovllm.generation.params import SamplingParams
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.paging.store import PagedStore
    from nanovllm.speculative.draft_model import DraftModel
    from nanovllm.speculative.guess_policy import FixedPolicy
    from nanovllm.speculative.verify import SpeculativeEngine

    class Guessing(SpeculativeEngine, Engine):
        pass

    config = ModelConfig("qwen3", 23, 32, 2, 4, 2, 8, 48, 160, qk_norm=True)
    model = dummy_model(config, 3)
    draft = DraftModel(Engine(model, store=PagedStore(config, 40)))
    store = PagedStore(config, 40)
    engine = Guessing(model, store=store, proposer=draft, guess_policy=FixedPolicy(4))
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    for number in range(count):
        engine.add_request([5 + number, 6, 7], params, request_id=number)
    return engine, draft


def accepted_share() -> float:
    import torch

    from nanovllm.speculative.rejection import accepts, pick

    p, q = (0.6, 0.1, 0.3), (0.3, 0.5, 0.2)
    stood = 0
    for i in range(100):
        guess = pick(torch.tensor(q), (i + 0.5) / 100)
        stood += sum(accepts(p[guess], q[guess], (j + 0.5) / 100) for j in range(100))
    return stood / 100


def places_of_a_tree() -> float:
    from nanovllm.speculative.tree import ROOT, TokenTree

    parents = (ROOT, ROOT, *(i // 2 for i in range(12)))
    return float(TokenTree(tuple(range(14)), parents).mask(0).sum())


def largest_batch() -> float:
    from nanovllm.batching.simulator import StepCost
    from nanovllm.speculative.gain import speed_up_in_batch

    target, draft = StepCost(0.004, 0.0002), StepCost(0.0004, 0.0)
    return next(
        batch - 1 for batch in range(1, 400) if speed_up_in_batch(0.8, 4, batch, target, draft) < 1
    )


def guesses_in_vain() -> float:
    from nanovllm.speculative.adaptive import AdaptivePolicy
    from nanovllm.speculative.costs import Costs
    from nanovllm.speculative.replay import RecordedText, replay

    costs = Costs(base=1.0, token=0.05, draft=0.05)
    text = RecordedText.of([False] * 1000)
    return replay([text], AdaptivePolicy(4, costs), costs).guesses


QUESTIONS = [
    Question(
        key="a",
        text="A text is 1 5 6 7 8 9 6 2 5 6, and lookup tries 3, then 2, then 1 of its newest "
        "tokens: which token does it guess first?",
        unit="(a token)",
        tasks=(1,),
        answer=found_by_lookup,
    ),
    Question(
        key="b",
        text="Four guesses a step, and all of them stand: how many steps do 41 tokens take?",
        unit="steps",
        tasks=(2, 3),
        answer=steps_when_always_right,
    ),
    Question(
        key="c",
        text="Five requests want four guesses each: how many forwards of the draft model is that?",
        unit="forwards",
        tasks=(2, 3),
        answer=forwards_of_a_step,
    ),
    Question(
        key="d",
        text="The target has p = (0.6, 0.1, 0.3), the draft draws its guess from q = (0.3, 0.5, "
        "0.2): in how many percent of the cases does rejection sampling let it stand?",
        unit="percent",
        tasks=(4,),
        answer=accepted_share,
    ),
    Question(
        key="e",
        text="Two guesses behind the known token, two behind each of these, and two behind each of "
        "those, 14 in all: in how many places of their 15 x 15 mask may one look at another?",
        unit="places",
        tasks=(5,),
        answer=places_of_a_tree,
    ),
    Question(
        key="f",
        text="A step costs 4 ms and 0.2 ms a token, a draft forward 0.4 ms, and a guess stands "
        "with rate 0.8: up to which batch size do four guesses pay?",
        unit="requests",
        tasks=(6,),
        answer=largest_batch,
    ),
    Question(
        key="g",
        text="A step costs 1 and 0.05 a token, a guess 0.05 more, and no guess ever stands: how "
        "many guesses does your policy make in a text of 1,000 tokens?",
        unit="guesses",
        tasks=(7,),
        answer=guesses_in_vain,
    ),
]

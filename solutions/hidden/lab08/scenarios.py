"""Hidden scenarios of lab 08: other paths than those of the visible checks."""

import gc
import weakref
from zlib import crc32

from grader.checks.scenarios import scenario

# task 1


class _Text:
    """A sequence that is only its tokens."""

    request_id = index = 0

    def __init__(self, prompt):
        self.prompt_token_ids, self.output_token_ids = prompt, []

    @property
    def num_tokens(self):
        return len(self.prompt_token_ids) + len(self.output_token_ids)


def _texts(prompts):
    from nanovllm.batching.request import Request

    return [Request(number, _Text(prompt), 0.0, 9_999) for number, prompt in enumerate(prompts)]


def _looked_up(found):
    """Guesses as data; how many tokens matched where there are any."""
    ids = [[int(token) for token in guesses.token_ids] for guesses in found]
    return [[i, int(g.match) if i else 0] for i, g in zip(ids, found, strict=True)]


@scenario(task=1)
def lookups_of_many_requests(nanovllm, rng):
    """Two lookups at once, of other lengths; two tokens only, so that places overlap."""
    from nanovllm.speculative.lookup import PromptLookup
    from nanovllm.speculative.proposer import Ask

    shortest = int(rng.integers(1, 5))
    lookups = [PromptLookup(shortest, shortest + int(rng.integers(5))), PromptLookup(2)]
    sizes = rng.integers(1, 12, size=6).tolist()
    requests, story = _texts([tuple(rng.integers(0, 2, size=n).tolist()) for n in sizes]), []
    for _ in range(40):
        for request in requests:
            new = rng.integers(0, 2, size=int(rng.choice([0, 1, 1, 5]))).tolist()
            request.sequence.output_token_ids += new
        which = rng.permutation(6)[: int(rng.integers(1, 7))]
        for lookup in lookups if rng.random() < 0.7 else lookups[:1]:
            asks = [Ask(requests[int(i)], int(rng.integers(1, 12))) for i in which]
            story.append(_looked_up(lookup.propose(asks)))
        if rng.random() < 0.2:
            lookups[int(rng.integers(2))].forget(requests[int(rng.integers(6))])
    return {"story": story}


@scenario(task=1)
def a_long_text_that_repeats_itself(nanovllm, rng):
    """Ids of a large vocabulary, phrases that come again with changes, first asked late."""
    from nanovllm.speculative.lookup import PromptLookup
    from nanovllm.speculative.proposer import Ask

    phrases = [rng.integers(0, 150_000, size=int(n)).tolist() for n in rng.integers(2, 9, size=12)]
    text = []
    for pick in rng.integers(0, 12, size=300):
        phrase = list(phrases[int(pick)])
        if rng.random() < 0.3:
            phrase[int(rng.integers(len(phrase)))] = int(rng.integers(0, 150_000))
        text += phrase
    [request] = _texts([text[:200]])
    lookup, story = PromptLookup(int(rng.integers(1, 3)), int(rng.integers(3, 7))), []
    late = int(rng.integers(0, 400))
    request.sequence.output_token_ids += text[200 : 200 + late]
    for start in range(200 + late, len(text), 7):
        request.sequence.output_token_ids += text[start : start + 7]
        story += _looked_up(lookup.propose([Ask(request, int(rng.integers(1, 9)))]))
    lookup.forget(request)
    story += _looked_up(lookup.propose([Ask(request, 8)]))
    for one in (request, request, _texts([(1, 2)])[0]):  # once more, and one never seen
        lookup.forget(one)
    left = weakref.ref(request)
    del one
    del request
    gc.collect()
    return {"story": story, "kept": left() is not None}


# task 2


class _Rule:
    """Guesses by a rule; notes the asks and whom it was told to forget."""

    def __init__(self, rule):
        self.rule, self.notes = rule, []

    def propose(self, asks):
        from nanovllm.speculative.proposer import Guesses

        self.notes.append([[ask.request.number, ask.most] for ask in asks])
        return [Guesses(tuple(self.rule(ask.request, ask.most)), "script") for ask in asks]

    def forget(self, request):
        self.notes.append(request.number)


class _Moody:
    """A policy that wants any number, also more than it may; notes what it hears."""

    def __init__(self, rng, most=6):
        self.rng, self.most, self.told, self.judgements = rng, most, [], []

    def lengths(self, requests, most, tokens):
        if requests:  # whether it is asked about nobody is left open
            self.told.append([[r.number for r in requests], list(most), tokens])
        return [int(self.rng.integers(-1, self.most)) for _ in requests]

    def judged(self, request, guesses, accepted):
        self.judgements.append([request.number, list(guesses.token_ids), accepted])

    def forget(self, request):
        pass


def _guessed(chunk):
    guesses = getattr(chunk, "guesses", None)
    ids = [] if guesses is None else list(guesses.token_ids)
    return [chunk.request.number, chunk.start, chunk.length, chunk.total, ids]


@scenario(task=2)
def random_plans_and_draws(nanovllm, rng):
    """Plans of chunks of all kinds, spread over their places; draws of any tokens and errors."""
    from nanovllm.batching.plan import Chunk, Plan
    from nanovllm.batching.request import Request
    from nanovllm.generation.events import Sampled
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sequence import Sequence
    from nanovllm.speculative.guessed_plan import GuessedChunk, at_places, spread
    from nanovllm.speculative.proposer import Guesses
    from nanovllm.speculative.verify import stands

    found = []
    for _ in range(8):
        chunks = []
        for number in range(int(rng.integers(1, 6))):
            prompt, output = (rng.integers(3, 9, size=int(rng.integers(1, 9))) for _ in "po")
            sequence = Sequence(prompt.tolist(), SamplingParams(), max_model_len=90, seed=number)
            sequence.output_token_ids += output.tolist()
            request, total = Request(number, sequence, 0.0, 89), len(prompt) + len(output)
            start = int(rng.integers(0, total))
            end = int(rng.integers(start + 1, total + 1)) if rng.random() < 0.4 else total
            chunk = Chunk(request, start, end - start, total)
            if end == total and rng.random() < 0.8:
                ids = rng.integers(3, 9, size=int(rng.integers(1, 6))).tolist()
                chunk = GuessedChunk.of(chunk, Guesses(tuple(ids)))
            chunks.append(chunk)
        plan = Plan(tuple(chunks), budget=99)
        found.append([[c.start, c.length, c.total] for c in spread(plan).chunks])
        rows = [chunk.request.sequence.row for chunk in at_places(plan).chunks]
        found.append([[list(r.output_token_ids), r.position, r.seed] for r in rows])
    verdicts = []
    for _ in range(60):
        guesses = rng.integers(3, 5, size=int(rng.integers(1, 6))).tolist()
        drawn = [Sampled(int(t)) for t in rng.integers(3, 5, size=len(guesses) + 1)]
        for at in range(len(drawn)):
            if rng.random() < 0.1:
                drawn[at] = ValueError()
        verdict = stands(tuple(guesses), drawn)
        ids = [getattr(one, "token_id", "error") for one in verdict.drawn]
        verdicts.append([ids, verdict.accepted])
    return {"places": found, "verdicts": verdicts}


def _steps_of(scheduler, rng):
    """Steps until all have ended: their plans; how many guesses stand is drawn."""
    from nanovllm.batching.plan import Plan
    from nanovllm.batching.request import Status

    story = []
    for _ in range(150):
        if not scheduler.has_work:
            break
        plan = scheduler.schedule()
        story.append([[_guessed(chunk) for chunk in plan.chunks], plan.budget_left])
        for chunk in plan.chunks:
            guesses = _guessed(chunk)[4]
            known = chunk.end - len(guesses)
            stood = int(rng.integers(0, len(guesses) + 1))
            request, done = chunk.request, chunk._replace(length=known + stood - chunk.start)
            scheduler.update(Plan((done,)))
            if known == request.num_tokens:
                for _ in range(stood + 1):
                    request.sequence.append()
            if request.sequence.finished:
                scheduler.end(request, Status.FINISHED)
        scheduler.check()
    return story


@scenario(task=2)
def little_budget_and_little_room(nanovllm, rng):
    """Four requests in decode share what is left; or the store fills up, and some are preempted."""
    from nanovllm.batching.budget import FixedBudget
    from nanovllm.batching.policies import make_policy
    from nanovllm.batching.request import Request
    from nanovllm.batching.scheduler import Scheduler
    from nanovllm.batching.simulated import CountingStore, SimulatedSequence
    from nanovllm.speculative.guess_policy import FixedPolicy
    from nanovllm.speculative.guessing_scheduler import SpeculativeScheduler

    found = []
    for room, budget in ((200, 4 + int(rng.integers(1, 4))), (24 + int(rng.integers(4)), 40)):
        inner = Scheduler(CountingStore(room), make_policy("fcfs"), FixedBudget(budget),
                          max_num_seqs=4, clock=lambda: 0.0)  # fmt: skip
        rule = _Rule(lambda request, most: [request.number] * most)
        scheduler = SpeculativeScheduler(inner, rule, FixedPolicy(3), 9)
        for number in range(4):
            prompt, output = int(rng.integers(3, 6)), int(rng.integers(12, 17))
            sequence = SimulatedSequence(number, prompt, output)
            scheduler.add(Request(number, sequence, float(number), prompt + output - 1))
        found += [_steps_of(scheduler, rng)]
        found.append(sorted(note for note in rule.notes if not isinstance(note, list)))
    return found


@scenario(task=2)
def plans_of_a_busy_scheduler(nanovllm, rng):
    """Without a model: who guesses what in each step, with preemption, chunks and any policy."""
    from nanovllm.batching.budget import FixedBudget
    from nanovllm.batching.policies import RoundRobin, make_policy
    from nanovllm.batching.request import Request
    from nanovllm.batching.scheduler import Scheduler
    from nanovllm.batching.simulated import CountingStore, SimulatedSequence
    from nanovllm.speculative.guessing_scheduler import SpeculativeScheduler

    story = []
    for name in ("fcfs", "round-robin", "sjf"):
        policy = RoundRobin(3) if name == "round-robin" else make_policy(name)
        most = [None, 3, 6][int(rng.integers(3))]
        inner = Scheduler(CountingStore(int(rng.integers(30, 70))), policy,
                          FixedBudget(int(rng.integers(6, 30))), max_num_seqs=5, max_chunk=most,
                          clock=lambda: 0.0)  # fmt: skip
        draws = rng.integers(0, 9, size=(9, 60))
        rule = _Rule(lambda request, most, draws=draws: draws[request.number, :most].tolist())
        moody = _Moody(rng)
        scheduler = SpeculativeScheduler(inner, rule, moody, 9, max_chunk=most)
        for number in range(7):
            prompt, output = int(rng.integers(1, 14)), int(rng.integers(1, 9))
            sequence = SimulatedSequence(number, prompt, output)
            scheduler.add(Request(number, sequence, float(number), prompt + output - 1))
        story += _steps_of(scheduler, rng)
        asked = [note for note in rule.notes if isinstance(note, list)]
        forgotten = sorted(note for note in rule.notes if not isinstance(note, list))
        story += [asked, forgotten, moody.told]
        story.append(inner.store.free_tokens == inner.store.total_tokens)
    return {"story": story}


def _guessing(rng, guesses, config, blocks, **more):
    """An engine on a small model in float64, whose texts vary; without guesses where None."""
    import torch

    from nanovllm.batching.engine import Engine
    from nanovllm.generation.latency import ManualClock
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.paging.store import PagedStore
    from nanovllm.speculative.verify import SpeculativeEngine

    torch.set_num_threads(1)
    sizes = ModelConfig("mistral", 30, 24, 2, 6, 3, 4, 40, 80, windows=(5, None),
                        eos_token_ids=(2,))  # fmt: skip
    model, generator = dummy_model(sizes, 1), torch.Generator().manual_seed(int(rng))
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.normal_(std=0.4, generator=generator)
    store = PagedStore(sizes, blocks, 3, torch.float64, **more)
    if guesses is None:
        return Engine(model.double(), config, store=store, clock=ManualClock())
    kind = type("Guessing", (SpeculativeEngine, Engine), {})
    rule, policy = guesses
    return kind(model.double(), config, store=store, clock=ManualClock(),
                proposer=_Rule(rule), guess_policy=policy)  # fmt: skip


def _told(engine, jobs, aborts=()):
    """By sample: tokens, how it ended, log-probabilities; and the chunks of all steps."""
    from nanovllm.batching.events import Failed, Stepped
    from nanovllm.generation.events import Finished, TokenGenerated

    texts, ends, chunks = {}, {}, []
    for step in range(400):
        for number, (arrival, prompt, params) in enumerate(jobs):
            if arrival == step:
                engine.add_request(prompt, params, seed=number, request_id=number)
            if (number, step) in aborts:
                engine.abort(number)
        if step > 20 and not engine.has_unfinished:
            break
        for event in engine.step():
            name = f"{getattr(event, 'request_id', 0)}.{getattr(event, 'index', 0)}"
            if isinstance(event, TokenGenerated):
                texts.setdefault(name, []).append(event.token_id)
            elif isinstance(event, Finished):
                ended = event.completion
                likely = [[t, p.logprob] for one in ended.logprobs or () for t, p in one.items()]
                ends[name] = [ended.finish_reason, ended.stop_reason, likely]
            elif isinstance(event, Failed):
                ends[name] = type(event.error).__name__
            elif isinstance(event, Stepped):
                runs = [[c.request_id, c.index, c.length, c.drafts, c.accepted]
                        for c in event.chunks]  # fmt: skip
                chunks.append([runs, event.budget])
        engine.check()
    return {"texts": texts, "ends": ends}, chunks


def _any_params(rng):
    from nanovllm.generation.params import SamplingParams

    most, temperature = int(rng.integers(1, 16)), float(rng.choice([0.0, 0.5, 1.0, 1.7]))
    return SamplingParams(
        temperature=temperature,
        max_tokens=most,
        n=int(rng.integers(1, 4)) if temperature else 1,
        min_tokens=int(rng.integers(0, most + 1)),
        top_k=int(rng.choice([0, 4])),
        presence_penalty=float(rng.choice([0.0, 0.7])),
        repetition_penalty=float(rng.choice([1.0, 1.2])),
        stop_token_ids=rng.integers(3, 30, size=2).tolist(),
        logprobs=[None, 2][int(rng.integers(2))],
        include_stop_str_in_output=bool(rng.random() < 0.5),
    )


@scenario(task=2)
def an_engine_with_a_moody_policy(nanovllm, rng):
    """Windows, swap, turns and urgency, guesses right at random; steps and texts."""
    from nanovllm.batching.config import EngineConfig

    found = []
    for policy in ("round-robin", "priority-with-ageing"):
        jobs = [(int(rng.integers(0, 8)), rng.integers(3, 30, size=int(n)).tolist(),
                 _any_params(rng)) for n in rng.integers(1, 12, size=4)]  # fmt: skip
        config = EngineConfig(max_num_seqs=5, max_num_batched_tokens=int(rng.integers(8, 40)),
                              max_chunk=[None, 4][int(rng.integers(2))], policy=policy)  # fmt: skip
        room = {"blocks": int(rng.integers(14, 30)), "enable_prefix_caching": False,
                "preemption": "swap", "num_host_blocks": int(rng.choice([0, 6, 40]))}  # fmt: skip
        weights = int(rng.integers(1000))
        alone, _ = _told(_guessing(weights, None, config, **room), jobs)
        right = rng.random(size=200) < 0.7

        def rule(request, most, alone=alone, right=right):
            name = f"{request.sequence.request_id}.{request.sequence.index}"
            said = request.num_output_tokens
            coming = alone["texts"].get(name, [])[said : said + most]
            return [t if right[said + i] else (t + 1) % 30 for i, t in enumerate(coming)]

        moody = _Moody(rng, 5)
        engine = _guessing(weights, (rule, moody), config, **room)
        told, chunks = _told(engine, jobs)
        found.append([told, chunks, sorted(moody.judgements), moody.told])
        found.append([told["texts"] == alone["texts"], engine.store.free_tokens])
    return {"found": found}


@scenario(task=2)
def a_long_random_life(nanovllm, rng):
    """Many arrivals, some given up; prefix cache; the texts of the engine without guesses."""
    from nanovllm.batching.config import EngineConfig

    shared, jobs = rng.integers(3, 30, size=24).tolist(), []
    for _ in range(9):
        own = rng.integers(3, 30, size=int(rng.integers(1, 7))).tolist()
        head = shared[: int(rng.choice([0, 9, 14]))]
        jobs.append((int(rng.integers(0, 20)), head + own, _any_params(rng)))
    aborts = {(int(rng.integers(9)), int(rng.integers(3, 25))) for _ in range(3)}
    config = EngineConfig(max_num_seqs=7, max_num_batched_tokens=int(rng.integers(10, 50)))
    room, weights = {"blocks": int(rng.integers(16, 40))}, int(rng.integers(1000))
    alone, _ = _told(_guessing(weights, None, config, **room), jobs)

    def rule(request, most):
        name = f"{request.sequence.request_id}.{request.sequence.index}"
        said = request.num_output_tokens
        return [*alone["texts"].get(name, [])[said : said + max(most - 1, 1)], 5, 99, -1][:most]

    engine = _guessing(weights, (rule, _Moody(rng, 7)), config, **room)
    told, _ = _told(engine, jobs, aborts)
    gone = {f"{number}." for number, _ in aborts}
    stayed = {k: v for k, v in told["texts"].items() if k[:2] not in gone}
    ends = {k: v for k, v in told["ends"].items() if k[:2] not in gone}
    begun = all(
        text == alone["texts"].get(name, [])[: len(text)] for name, text in told["texts"].items()
    )
    return {"texts": stayed, "ends": ends, "begun": begun, "free": engine.store.free_tokens}


# task 3


def _draft(rng, blocks=120, **more):
    """An engine of a small random model; its store has blocks of 2 to 6 places."""
    import torch

    from nanovllm.batching.config import EngineConfig
    from nanovllm.batching.engine import Engine
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.paging.store import PagedStore

    torch.set_num_threads(1)
    config = ModelConfig("mistral", 40, 24, 2, 6, 3, 4, 40, 80, windows=(5, None))
    model = dummy_model(config, seed=int(rng.integers(1000)))
    store = PagedStore(config, blocks, int(rng.integers(2, 7)), enable_prefix_caching=True)
    return lambda kind=Engine: kind(model, EngineConfig(**more), store=store)


def _asked(rng, number, prompt, params, index=0, request_id=None):
    from nanovllm.batching.request import Request
    from nanovllm.generation.sequence import Sequence

    request_id = number if request_id is None else request_id
    sequence = Sequence(prompt, params, max_model_len=80, seed=number, eos_token_ids=(2,),
                        request_id=request_id, index=index)  # fmt: skip
    return Request(number, sequence, 0.0, 80)


@scenario(task=3)
def a_draft_among_comings_and_goings(nanovllm, rng):
    """Windows, prefix hits, every parameter, guesses that stand in part; there is room for all."""
    from nanovllm.generation.params import SamplingParams
    from nanovllm.speculative.draft_model import DraftModel
    from nanovllm.speculative.proposer import Ask

    found = {}
    for sampled in (False, True):
        engine = _draft(rng)()
        draft = DraftModel(engine, sampled=sampled)
        live, story, trunk = [], [], rng.integers(3, 40, size=12).tolist()
        for number in range(14):
            params = SamplingParams(
                temperature=float(rng.choice([0.0, 1.0, 1.4])), min_tokens=int(rng.integers(0, 4)),
                repetition_penalty=float(rng.choice([1.0, 1.5])), logit_bias={7: 1.5},
                max_tokens=60,
            )  # fmt: skip
            prompt = [*trunk[: int(rng.integers(0, 12))], *rng.integers(3, 40, size=2).tolist()]
            live.append(_asked(rng, number, prompt, params))
            asks = [Ask(live[i], int(rng.integers(1, 6)))
                    for i in rng.permutation(len(live))[: int(rng.integers(1, 5))]]  # fmt: skip
            before = draft.num_forwards
            guesses = draft.propose(asks)
            story.append([list(one.token_ids) for one in guesses])
            story.append(draft.num_forwards - before <= max(ask.most for ask in asks))
            for ask, one in zip(asks, guesses, strict=True):
                stood = int(rng.integers(0, len(one.token_ids) + 1))
                others = rng.integers(3, 40, size=int(rng.integers(0, 3))).tolist()
                ask.request.sequence.output_token_ids += [*one.token_ids[:stood], *others]
                if rng.random() < 0.25:
                    draft.forget(ask.request)
                if rng.random() < 0.2:
                    draft.forget(ask.request)
                    live.remove(ask.request)
        for request in live:
            draft.forget(request)
        engine.store.check(())
        found[str(sampled)] = [story, engine.store.free_tokens]
    return found


@scenario(task=3)
def samples_of_one_request_in_little_room(nanovllm, rng):
    """Guesses may be fewer than wanted, but are those of a draft that has all the room."""
    from nanovllm.generation.params import SamplingParams
    from nanovllm.speculative.draft_model import DraftModel
    from nanovllm.speculative.proposer import Ask

    params, same, first = SamplingParams(max_tokens=60), [], []
    engine = _draft(rng, blocks=14, max_model_len=40)()
    draft = DraftModel(engine, sampled=True)
    live, number, made = [], 0, 0
    for group in range(10):
        prompt = rng.integers(3, 40, size=int(rng.integers(1, 9))).tolist()
        for index in range(int(rng.integers(1, 4))):
            live.append(_asked(rng, number, prompt, params, index, 100 + group))
            number += 1
        asks = [Ask(request, int(rng.integers(1, 5))) for request in live]
        for ask, one in zip(asks, draft.propose(asks), strict=True):
            ample = DraftModel(_same_model(engine), sampled=True)
            [wanted] = ample.propose([ask])
            count = len(one.token_ids)
            same.append(tuple(one.token_ids) == tuple(wanted.token_ids[:count]))
            first += [list(wanted.token_ids)] if group == 0 else []
            made += count
            ask.request.sequence.output_token_ids += [*wanted.token_ids[:count], 9]
        while len(live) > 4 or any(request.num_tokens > 38 for request in live):
            gone = max(live, key=lambda request: request.num_tokens)
            live.remove(gone)
            draft.forget(gone)
    for request in live:
        draft.forget(request)
    return {"same": all(same), "some": made > 0, "first": first,
            "left": engine.store.total_tokens - engine.store.free_tokens}  # fmt: skip


def _same_model(engine):
    from nanovllm.batching.engine import Engine
    from nanovllm.paging.store import PagedStore

    return Engine(engine.model, engine.config, store=PagedStore(engine.model.config, 60, 4))


@scenario(task=3)
def a_forward_that_fails(nanovllm, rng):
    """Out of memory at some forward: everybody is forgotten, and asked again."""
    from nanovllm.batching.engine import Engine
    from nanovllm.generation.params import SamplingParams
    from nanovllm.speculative.draft_model import DraftModel
    from nanovllm.speculative.proposer import Ask

    story, left = [], [0]

    class Moody(Engine):
        def execute(self, plan):
            left[0] -= 1
            if left[0] == 0:
                raise MemoryError
            return super().execute(plan)

    engine = _draft(rng)(Moody)
    draft = DraftModel(engine)
    params = SamplingParams(max_tokens=60)
    requests = [_asked(rng, i, rng.integers(3, 40, size=n).tolist(), params)
                for i, n in enumerate((5, 9, 3))]  # fmt: skip
    for fails in (1, 3, 4, 0, 2, 0):
        left[0] = fails
        try:
            story.append(
                [list(one.token_ids) for one in draft.propose([Ask(r, 4) for r in requests])]
            )
        except MemoryError:
            story.append("failed")
            for request in requests:
                draft.forget(request)
            story.append(engine.store.free_tokens == engine.store.total_tokens)
        for request in requests:
            request.sequence.output_token_ids.append(int(rng.integers(3, 40)))
    return story


class _Echo:
    """An engine of a draft without a model: what it says depends on all places of its memory.

    In each lies a number made of the token computed there and of the place before it. spent: the
    tokens computed so far.
    """

    def __init__(self, size, limit, **more):
        from nanovllm.paging.manager import BlockManager

        self.store, self.max_model_len = BlockManager(120, size, **more), limit
        self.size, self.memory, self.spent = size, {}, 0

    def execute(self, plan):
        for move in self.store.transfers:
            for i in range(self.size):
                self.memory[move.new, i] = self.memory.get((move.old, i))
        self.store.transfers.clear()
        return [self.read(chunk) for chunk in plan.chunks]

    def read(self, chunk):
        blocks, before = self.store.block_ids(chunk.request), None
        places = [(blocks[i // self.size], i % self.size) for i in range(chunk.end)]
        tokens = chunk.request.token_ids(chunk.start, chunk.end)
        if chunk.start:
            before = self.memory.get(places[chunk.start - 1])
        for place, token in zip(places[chunk.start :], tokens, strict=True):
            before = self.memory[place] = crc32(f"{token} {before}".encode())
        self.spent += len(tokens)
        return crc32(repr([self.memory.get(place) for place in places]).encode()) % 900

    def draw(self, plan, found):
        from nanovllm.generation.events import Sampled

        return [Sampled(one) if chunk.completes else None
                for chunk, one in zip(plan.chunks, found, strict=True)]  # fmt: skip


@scenario(task=3)
def up_to_the_end_of_the_context(nanovllm, rng):
    """What is guessed and computed when part of the guesses stand, then always another token."""
    from nanovllm.generation.params import SamplingParams
    from nanovllm.speculative.draft_model import DraftModel
    from nanovllm.speculative.proposer import Ask

    engine = _Echo(int(rng.integers(2, 6)), int(rng.integers(24, 30)), enable_prefix_caching=False)
    draft, story, params = DraftModel(engine), [], SamplingParams(max_tokens=60)
    near = engine.max_model_len - 2
    sizes = [near, *rng.integers(1, 14, size=4).tolist(), 50]  # the last never fits
    requests = [_asked(rng, i, rng.integers(3, 40, size=n).tolist(), params)
                for i, n in enumerate(sizes)]  # fmt: skip
    for step in range(12):
        which = [5, *rng.permutation(5)[: int(rng.integers(1, 5))]] if step else [5, 0, 1]
        asks = [Ask(requests[i], int(rng.integers(1 if step else 5, 8))) for i in which]
        spent, forwards = engine.spent, draft.num_forwards
        found = [list(one.token_ids) for one in draft.propose(asks)]
        few = draft.num_forwards - forwards <= max(ask.most for ask in asks)
        story.append([found, engine.spent - spent, few])
        for ask, guesses in zip(asks, found, strict=True):
            stood = int(rng.integers(0, len(guesses) + 1))
            new = [*guesses[:stood], *rng.integers(1000, 1100, size=int(rng.integers(1, 3)))]
            ask.request.sequence.output_token_ids += [int(token) for token in new]
    for request in requests:
        draft.forget(request)
    return [story, engine.store.free_tokens == engine.store.total_tokens]


@scenario(task=3)
def who_begins_like_a_guess_that_fell(nanovllm, rng):
    """Requests that begin with the text and the guesses of another, which is there or has left."""
    from nanovllm.generation.params import SamplingParams
    from nanovllm.speculative.draft_model import DraftModel
    from nanovllm.speculative.proposer import Ask

    found, params = [], SamplingParams(max_tokens=60)
    for stood in range(4):
        size = int(rng.integers(2, 4))
        engine = _Echo(size, 60)
        draft = DraftModel(engine)
        one = _asked(rng, 0, rng.integers(3, 40, size=int(rng.integers(3, 9))).tolist(), params)
        [guesses] = draft.propose([Ask(one, 6 + size)])
        path = [*one.token_ids(0, one.num_tokens), *guesses.token_ids]
        one.sequence.output_token_ids += [*guesses.token_ids[:stood], *[1000] * (size + 1)]
        draft.propose([Ask(one, 5)])
        if stood % 2:
            draft.forget(one)
        for number, prompt in enumerate((path, one.token_ids(0, one.num_tokens)), 1):
            other = _asked(rng, number, [*prompt, int(rng.integers(3, 40))], params)
            found.append([list(g.token_ids) for g in draft.propose([Ask(other, 4)])])
            draft.forget(other)
    return found


# task 4


@scenario(task=4)
def rows_of_every_kind(nanovllm, rng):
    """Masks in the logits, ties of greedy rows, vocabularies of a few and of many tokens."""
    import torch

    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.rows import SamplingRow
    from nanovllm.speculative.rejection import distribution

    found = []
    for vocab in (2, 9, 300):
        rows, logits = [], rng.normal(size=(14, vocab)) * 2
        for n in range(14):
            params = SamplingParams(
                temperature=float(rng.choice([0.0, 0.5, 1.7])), top_k=int(rng.choice([0, 2, 400])),
                top_p=float(rng.choice([1.0, 0.5, 0.93])), min_p=float(rng.choice([0.0, 0.07])),
                min_tokens=int(rng.integers(0, 4)), stop_token_ids=[1, vocab + 3],
                repetition_penalty=float(rng.choice([1.0, 0.6, 1.7])), frequency_penalty=0.4,
                presence_penalty=float(rng.choice([0.0, -1.2])), logit_bias={0: 1.0},
            )  # fmt: skip
            prompt, output = (rng.integers(0, vocab, size=4).tolist() for _ in "po")
            rows.append(SamplingRow(params, prompt, output[: n % 5], n, (vocab - 1,)))
            if vocab > 2:
                logits[n, int(rng.integers(1, vocab))] = -float("inf")
        given = torch.from_numpy(logits).float()
        found.append(distribution(given, rows).float())
        found.append(distribution(given.bfloat16()[:3].float(), rows[:3]).float())
    return found


@scenario(task=4)
def many_judgements(nanovllm, rng):
    """Long runs of guesses, near copies of the target as drafts, tokens of probability 0."""
    import torch

    from nanovllm.speculative.rejection import rejection_sample

    story = []
    for number in range(200):
        k, vocab = int(rng.integers(0, 9)), int(rng.integers(2, 40))
        p = rng.random((k + 1, vocab)) ** 4 * (rng.random((k + 1, vocab)) < 0.7)
        p[:, 1] += 0.05
        q = p[:k] * rng.random((k, vocab)) ** (0.3 if number % 3 else 2.0)
        if number % 4 == 0:
            q = q[:, ::-1] + 0.01
        p, q = (torch.from_numpy(x / x.sum(1, keepdims=True)) for x in (p, q))
        guesses = [int(torch.multinomial(row, 1, generator=_seeded(rng))) for row in q]
        certain = number % 5 == 0
        uniforms = torch.from_numpy(rng.random((k + 1, 2)))
        tokens = rejection_sample(p, None if certain else q, guesses, uniforms)
        story.append([int(token) for token in tokens])
    return story


def _seeded(rng):
    import torch

    return torch.Generator().manual_seed(int(rng.integers(1 << 30)))


@scenario(task=4)
def parts_of_the_rule(nanovllm, rng):
    import torch

    from nanovllm.speculative.rejection import accepts, pick, residual

    story = []
    for _ in range(60):
        vocab = int(rng.integers(1, 30))
        p, q = rng.random((2, vocab)) ** 3 * (rng.random((2, vocab)) < 0.8)
        p[-1], q[-1] = rng.uniform(0.01, 1.0, 2)
        p[: int(rng.integers(vocab))] = 0.0  # of the first tokens some are impossible
        p, q = (torch.from_numpy(x / x.sum()) for x in (p, q))
        u = float(rng.random())
        story.append([bool(accepts(float(p[0]), float(q[0]), u)), residual(p, q).float(),
                      residual(p, p.clone()).float(), int(pick(p, u)), int(pick(p, 0.0)),
                      bool(accepts(0.0, float(q[0]), u)), bool(accepts(0.0, float(q[0]), 0.0)),
                      bool(accepts(float(p[0]), float(q[0]), 0.0)),
                      int(pick(p.float() * 0.9, u)), int(pick(p.float() * 1.1, u)),
                      int(pick(p.float() * 0.98, 1 - 2**-20))])  # fmt: skip
    return story


@scenario(task=4)
def drafts_of_many_requests(nanovllm, rng):
    from nanovllm.generation.params import SamplingParams
    from nanovllm.speculative.draft_model import DraftModel
    from nanovllm.speculative.proposer import Ask

    draft = DraftModel(_draft(rng)(), sampled=True, with_probs=True)
    requests, story = [], []
    for number, n in enumerate((3, 8, 1, 5)):
        top_p = float(rng.choice([1.0, 0.7]))
        params = SamplingParams(temperature=float(number != 2), top_p=top_p, max_tokens=60,
                                presence_penalty=1.0)  # fmt: skip
        requests.append(_asked(rng, number, rng.integers(3, 40, size=n).tolist(), params))
    for step in range(4):
        asks = [Ask(r, int(rng.integers(1, 6))) for r in requests[step % 3 :]]
        for ask, one in zip(asks, draft.propose(asks), strict=True):
            story.append([list(one.token_ids), one.probs.float()])
            stood = int(rng.integers(0, len(one.token_ids) + 1))
            ask.request.sequence.output_token_ids += [*one.token_ids[:stood], 11]
    return story


# task 5


def _tree(rng, count, vocab=40):
    from nanovllm.speculative.tree import TokenTree

    parents = [int(rng.integers(max(-1, i - 5), i)) for i in range(count)]
    return TokenTree(tuple(rng.integers(3, vocab, size=count).tolist()), tuple(parents))


@scenario(task=5)
def random_trees(nanovllm, rng):
    story = []
    for count in (1, 6, 25, 40):
        tree = _tree(rng, count, vocab=6)
        stored = int(rng.integers(0, 20))
        nodes, tokens = tree.walk(rng.integers(3, 6, size=count + 1).tolist())
        story.append([tree.mask(stored).int().tolist(), tree.positions(stored).tolist(),
                      list(nodes), list(tokens)])  # fmt: skip
    return story


@scenario(task=5)
def a_text_by_other_trees(nanovllm, rng):
    """Learned positions, grouped heads, a cache whose free places hold NaN; trees at random, and
    trees that know the right answer but hide it behind wrong ones."""
    import torch

    from nanovllm.model.cache import ContiguousCache, forward_cached
    from nanovllm.model.config import ModelConfig
    from nanovllm.model.loader import dummy_model
    from nanovllm.speculative.tree import ROOT, TokenTree, verify_tree

    found = {}
    torch.set_num_threads(1)
    for family, windows in (("gpt2", ()), ("mistral", (3, 7))):
        sizes = {"windows": windows} if windows else {"tie_embeddings": True}
        groups = 3 if windows else 6
        config = ModelConfig(family, 40, 24, 2, 6, groups, 4, 40, 90, **sizes)
        model = dummy_model(config, seed=int(rng.integers(1000)))
        text = rng.integers(3, 40, size=int(rng.integers(1, 7))).tolist()
        plain = list(text)
        alone = ContiguousCache(config, 80)
        hidden = forward_cached(model, alone, torch.tensor(plain))
        for _ in range(30):
            plain.append(int(model.logits(hidden[-1:])[0].argmax()))
            hidden = forward_cached(model, alone, torch.tensor(plain[-1:]))
        cache, story = ContiguousCache(config, 80), []
        if len(text) > 1:
            forward_cached(model, cache, torch.tensor(text[:-1]))
        for array in (cache.k, cache.v):
            array[:, cache.length :] = torch.nan
        while len(text) < 24:
            long = 6 if not story else int(rng.integers(0, 5))  # first beyond the window
            right = plain[len(text) : len(text) + long]
            tokens, parents, at = [], [], ROOT
            for token in right:
                for _ in range(int(rng.integers(at == ROOT, 3))):
                    tokens.append(int((token + rng.integers(1, 30)) % 40))
                    parents.append(at)
                tokens.append(token)
                parents.append(at)
                at = len(tokens) - 1
            tokens += rng.integers(3, 40, size=2).tolist()
            parents += [at, len(tokens) - 2]
            new = verify_tree(model, cache, text[-1], TokenTree(tuple(tokens), tuple(parents)))
            text += [int(token) for token in new]
            story.append([len(new), cache.length])
        stored = slice(0, cache.length)
        found[family] = [text, story, cache.k[:, stored].clone(), cache.v[:, stored].clone()]
    return found


@scenario(task=5)
def other_best_trees(nanovllm, rng):
    import torch

    from nanovllm.speculative.tree import best_tree

    story = []
    for nodes, width, depth in ((0, 3, 8), (20, 4, 1), (25, 9, 4), (50, 3, 12), (14, 2, 8)):
        seed, asked = int(rng.integers(1 << 20)), []

        def behind(path, seed=seed, asked=asked):
            asked.append(tuple(path))
            generator = torch.Generator().manual_seed(
                seed + sum((i + 3) ** 3 * t for i, t in enumerate(path, 1))
            )
            return torch.randn(30, generator=generator) * 2

        tree = best_tree(behind, nodes, width=width, depth=depth)
        story.append([list(tree.token_ids), list(tree.parents), len(asked) == len(set(asked))])
    return story


# task 6


@scenario(task=6)
def gains_of_random_costs(nanovllm, rng):
    from nanovllm.batching.simulator import StepCost
    from nanovllm.speculative.gain import (
        best_guesses,
        expected_tokens,
        speed_up,
        speed_up_in_batch,
    )

    found = []
    for _ in range(20):
        rate, most = float(rng.choice([0.0, 1.0, *rng.random(4)])), int(rng.integers(0, 12))
        verify = [1.0, *(1.0 + rng.random(12).cumsum() / 5)]
        draft = float(rng.choice([0.0, rng.random() / 2]))
        target = StepCost(float(rng.random()), float(rng.random() / 50))
        small = StepCost(float(rng.random() / 10), float(rng.random() / 100))
        batch = int(rng.integers(1, 100))
        found.append(
            [
                expected_tokens(rate, most),
                speed_up(rate, most, verify[most], draft),
                best_guesses(rate, most, verify, draft),
                speed_up_in_batch(rate, most, batch, target, small),
                speed_up_in_batch(rate, most, batch, target),
            ]
        )
    return found


@scenario(task=6)
def of_equals_the_smallest(nanovllm, rng):
    """Speed-ups of exactly 1/2, 1 and 2 at random numbers of guesses; all sums are exact."""
    from nanovllm.speculative.gain import best_guesses

    found = []
    for _ in range(30):
        rate, draft = float(rng.choice([0.0, 0.25, 0.5, 0.75, 1.0])), int(rng.integers(2)) / 16
        tokens = [sum(rate**place for place in range(k + 1)) for k in range(7)]
        gains = [1.0, *rng.choice([0.5, 1.0, 2.0], p=[0.4, 0.4, 0.2], size=6).tolist()]
        verify = [
            n / gain - k * draft for k, (n, gain) in enumerate(zip(tokens, gains, strict=True))
        ]
        found.append([best_guesses(rate, most, verify, draft) for most in range(7)])
    return found


# task 7


def _one(number):
    from nanovllm.batching.request import Request
    from nanovllm.batching.simulated import SimulatedSequence

    return Request(number, SimulatedSequence(number, 9, 5000), 0.0, 5000)


def _step(policy, batch, limits, stood):
    """The numbers of a step; of request i's guesses the first stood(i) are right."""
    from nanovllm.speculative.proposer import Guesses

    counts = policy.lengths(batch, limits, len(batch))
    for i, (request, count) in enumerate(zip(batch, counts, strict=True)):
        if count:
            policy.judged(request, Guesses((3,) * count, "draft"), min(int(stood(i)), count))
    return list(counts)


@scenario(task=7)
def steps_in_which_little_is_told(nanovllm, rng):
    """Guesses that nobody found, or that were cut; requests that are away for a while."""
    from nanovllm.speculative.adaptive import AdaptivePolicy
    from nanovllm.speculative.costs import Costs
    from nanovllm.speculative.proposer import Guesses

    most, asked = int(rng.integers(1, 7)), 0
    policy = AdaptivePolicy(most, Costs(1.0, 0.05, 0.01, 0.02))
    batch, right, total = [_one(n) for n in range(9)], True, 0
    for step in range(300):
        here = [batch[i] for i in rng.permutation(9)[: int(rng.integers(0, 10))]]
        limits = [int(n) for n in rng.integers(0, 9, size=len(here))]
        asked += sum(limits)
        counts = policy.lengths(tuple(here), tuple(limits), len(here) + int(rng.integers(0, 400)))
        right &= [0 <= c <= min(n, most) for c, n in zip(counts, limits, strict=True)] == [
            True
        ] * len(here)
        cuts, parts = rng.integers(0, 9, size=len(here)), rng.random(len(here))
        for request, count, cut, part in zip(here, counts, cuts, parts, strict=True):
            cut = min(count, int(cut))
            if cut:
                policy.judged(request, Guesses((1,) * cut, "ngram"), int(part * (cut + 1)))
        total += sum(counts)
        if rng.random() < 0.1:
            policy.forget(batch[step % 9])
            batch[step % 9] = _one(step % 9)
    return [asked, right, total > 0]


@scenario(task=7)
def a_lookup_that_finds_little(nanovllm, rng):
    """Texts of which many places have no guess; where there is one, it costs no draft."""
    from nanovllm.speculative.adaptive import AdaptivePolicy
    from nanovllm.speculative.costs import Costs
    from nanovllm.speculative.guess_policy import FixedPolicy
    from nanovllm.speculative.replay import RecordedText, gain

    texts = []
    for _ in range(12):
        rate, places = float(rng.choice([0.1, 0.9])), []
        for _ in range(80):
            found = int(rng.choice([0, 0, 0, 6, 8]))
            right = 0
            while right < found and rng.random() < rate:
                right += 1
            places.append((found, right))
        found, right = zip(*places, strict=True)
        texts.append(RecordedText(found, right, False))
    verdicts = []
    for numbers in ((1.0, 0.03), (0.3, 0.05), (0.1, 1.0)):
        for batch in (1, 5):
            costs = Costs(*numbers)
            won = gain(texts, AdaptivePolicy(8, costs), costs, batch)
            best = max(gain(texts, FixedPolicy(k), costs, batch) for k in (0, 1, 2, 4, 8))
            verdicts.append([best, won >= 0.93, won >= 0.8 * best])
    return verdicts


@scenario(task=7)
def a_batch_that_grows(nanovllm, rng):
    """The same costs and rates: alone guesses pay, in a large batch they do not. What counts is
    the speed to be expected at the rate, beside the best fixed number's.
    """
    from nanovllm.speculative.adaptive import AdaptivePolicy
    from nanovllm.speculative.costs import Costs

    rate = float(rng.uniform(0.6, 0.72))
    costs = Costs(1.0, 0.1, 0.0, 0.05)
    policy, batch, reached = AdaptivePolicy(4, costs), [_one(n) for n in range(64)], []

    def speed(steps):
        said = sum(rate**i for counts in steps for n in counts for i in range(n + 1))
        took = (1.0 + 0.1 * sum(n + 1 for n in c) + costs.drafting(c) for c in steps)
        return said / sum(took)

    for size in (1, 64, 1):
        steps = []
        for _ in range(120):
            stood = rng.geometric(1 - rate, size=size) - 1
            steps.append(_step(policy, batch[:size], (4,) * size, stood.__getitem__))
        best = max(speed([[k] * size]) for k in range(5))
        reached.append(speed(steps[60:]) >= 0.85 * best)
    return [rate, *reached]


@scenario(task=7)
def traffic_that_changes(nanovllm, rng):
    """Short requests, one after another: those of the morning are right, then nobody is."""
    from nanovllm.speculative.adaptive import AdaptivePolicy
    from nanovllm.speculative.costs import Costs

    costs = Costs(1.0, float(rng.uniform(0.1, 0.15)), 0.05, 0.05)
    policy, number, found = AdaptivePolicy(6, costs), 0, []
    for stood, requests in ((9, 40), (0, 120)):
        made = []
        for _ in range(requests):
            request = _one(number % 13)
            number += 1
            made += [_step(policy, [request], [6], lambda i, s=stood: s)[0] for _ in range(5)]
            policy.forget(request)
        found.append(sum(made[-50:]) / 50)
    return [costs.token, found[0] >= 3, found[1] <= 0.3]


@scenario(task=7)
def forwards_for_all(nanovllm, rng):
    """Eight requests, of which one or all are right; and single rates with dear tokens."""
    from nanovllm.speculative.adaptive import AdaptivePolicy
    from nanovllm.speculative.costs import Costs
    from nanovllm.speculative.guess_policy import FixedPolicy
    from nanovllm.speculative.replay import RecordedText, gain

    made = {1: 0, 8: 0}
    for good in (1, 1, 1, 1, 8):
        policy, batch = AdaptivePolicy(4, Costs(1.0, 0.02, 0.0, 0.25)), [_one(n) for n in range(8)]
        rates = [0.75 if n < good else 0.02 for n in range(8)]
        for step in range(160):
            stood = [int(rng.geometric(1 - rate)) - 1 for rate in rates]
            counts = _step(policy, batch, (4,) * 8, stood.__getitem__)
            made[good] += sum(counts) if step >= 80 else 0
    found = [made[1] <= 4 * 100, made[8] >= 560]
    for batch in (1, 3):
        rate, costs = float(rng.uniform(0.72, 0.78)), Costs(1.0, float(rng.uniform(0.8, 1.0)))
        texts = [RecordedText.of(rng.random(160) < rate) for _ in range(4 * batch)]
        won = gain(texts, AdaptivePolicy(8, costs), costs, batch)
        best = max(gain(texts, FixedPolicy(k), costs, batch) for k in range(9))
        found.append([best, won >= 0.8 * best])
    return found


@scenario(task=7)
def what_says_nothing(nanovllm, rng):
    """Places that were never reached; an earlier request of the same number; who has left."""
    from nanovllm.speculative.adaptive import AdaptivePolicy
    from nanovllm.speculative.costs import Costs
    from nanovllm.speculative.proposer import Guesses

    token = float(rng.uniform(0.4, 0.45))
    policy, one = AdaptivePolicy(8, Costs(1.0, token, 0.0, 0.0)), _one(0)
    for count in rng.integers(7, 9, size=30):
        policy.judged(one, Guesses((3,) * int(count), "draft"), 1)
    found = [token, min(_step(policy, [one], [8], lambda i: 1)[0] for _ in range(5)) >= 1]
    bad, told = int(rng.integers(8)), []
    for number in (bad, 99):
        policy, batch = AdaptivePolicy(4, Costs(1.0, 0.2, 0.05, 0.05)), [_one(n) for n in range(8)]
        for _ in range(60):
            _step(policy, batch, (4,) * 8, lambda i: 0 if i == bad else 9)
        policy.forget(batch[bad])
        batch[bad] = _one(number)
        told.append(list(policy.lengths(batch, (4,) * 8, 8)))
    found.append(told[0] == told[1])
    gone = []
    for number in range(300):
        one = _one(number)
        _step(policy, [one], [4], lambda i: 9)
        policy.forget(one)
        gone.append(weakref.ref(one))
    del one
    gc.collect()
    return [*found, sum(left() is not None for left in gone) <= 100]


@scenario(task=7)
def who_falls_and_comes_back(nanovllm, rng):
    """One request whose guesses all stand, then fall for a while, then stand again."""
    from nanovllm.speculative.adaptive import AdaptivePolicy
    from nanovllm.speculative.costs import Costs

    found = []
    for _ in range(3):
        token = float(rng.uniform(0.05, 0.2))
        small = [token * float(rng.uniform(0.25, 0.5)) for _ in range(2)]
        policy, one, made = AdaptivePolicy(4, Costs(1.0, token, *small)), _one(0), []
        quiet = int(rng.integers(60, 300))
        for stood, steps in ((9, 100), (0, quiet), (9, 200)):
            counts = [_step(policy, [one], [9], lambda i, s=stood: s)[0] for _ in range(steps)]
            made.append([sum(counts[-50:]) >= 140 or not stood, max(counts) <= 4])
        found.append([token, made])
    return found


@scenario(task=7)
def many_turns(nanovllm, rng):
    """Requests whose rates go up and down, each at its own time; and costs that do."""
    from nanovllm.speculative.adaptive import AdaptivePolicy
    from nanovllm.speculative.costs import Costs

    costs = Costs(1.0, 0.05, 0.02, 0.02)
    policy, verdicts = AdaptivePolicy(5, costs), []
    batch, good = [_one(n) for n in range(4)], [True, False, True, False]
    for turn in range(6):
        made, spent = [0] * 4, 0
        for step in range(260):
            counts = _step(policy, batch, (5,) * 4, lambda i: 9 * good[i])
            if step >= 200:
                made = [a + b for a, b in zip(made, counts, strict=True)]
        costs.base, costs.token = 0.05, 1.0
        for _ in range(30):
            spent += sum(_step(policy, batch, (5,) * 4, lambda i: 9 * good[i]))
        costs.base, costs.token = 1.0, 0.05
        verdicts.append(
            [[g, n >= 180 if g else n <= 20] for n, g in zip(made, good, strict=True)]
            + [spent <= 8]
        )
        good[turn % 4] ^= True
        good[int(rng.integers(4))] ^= True
    return verdicts


@scenario(task=7)
def random_texts_and_costs(nanovllm, rng):
    """A policy beside every fixed number, on texts whose rates change on the way."""
    from nanovllm.speculative.adaptive import AdaptivePolicy
    from nanovllm.speculative.costs import Costs
    from nanovllm.speculative.guess_policy import FixedPolicy
    from nanovllm.speculative.replay import RecordedText, replay

    verdicts = []
    for _ in range(4):
        numbers = [1.0, 10 ** rng.uniform(-2, 0.3), rng.uniform(0, 0.05), rng.uniform(0, 0.2)]
        costs, most = Costs(*map(float, numbers)), int(rng.integers(1, 10))
        batch = int(rng.integers(1, 9))
        texts = []
        for _ in range(int(rng.integers(6, 16))):
            rates = rng.choice([0.0, 0.3, 0.6, 0.9, 1.0], size=int(rng.integers(1, 4)))
            right = [rng.random() < r for r in rates for _ in range(int(rng.integers(2, 70)))]
            texts.append(RecordedText.of(right, most=most))
        took = replay(texts, AdaptivePolicy(most, costs), costs, batch, most)
        fixed = [replay(texts, FixedPolicy(k), costs, batch, most) for k in range(most + 1)]
        room = 40 * (costs.token + costs.draft + costs.forward)
        best = min(run.seconds for run in fixed)
        verdicts.append(
            [
                best,
                took.tokens == fixed[0].tokens,
                took.seconds <= 1.3 * best + room,
                max(max(step.values()) for step in took.wanted) <= most,
            ]
        )
    return verdicts

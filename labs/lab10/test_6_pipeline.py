"""Task 6: pipeline."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from grader import expect
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.cache import ContiguousCache
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.parallel.pipeline import MicroBatch, bubble, run_stage, schedule
from nanovllm.parallel.stages import Stage, layer_ranges
from nanovllm.parallel.threads import run_ranks


def shape(layers=5, family="qwen3", tied=False, windows=()):
    biased = family == "gpt2"
    return ModelConfig(
        family, 50, 16, layers, 4, 4 if biased else 2, 4, 24, 64, norm_eps=0.1, windows=windows,
        tie_embeddings=tied, qk_norm=family == "qwen3", qkv_bias=family in ("qwen2", "gpt2"),
        output_bias=biased, mlp_bias=biased,
    )  # fmt: skip


def tokens_of(length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(50, (length,), generator=generator)


@pytest.mark.check(task=6, points=1, title="Who computes what when")
def test_schedule():
    expect(
        schedule(3, 2),
        [(0, 0, 0), (1, 0, 1), (1, 1, 0), (2, 1, 1), (2, 2, 0), (3, 2, 1)],
        call="schedule(3, 2)",
        cause="stage s begins micro-batch m when stage s - 1 has done with it, and it with m - 1",
    )
    for stages, parts in product(range(1, 6), range(1, 7)):
        found = schedule(stages, parts)
        when = {(stage, part): tick for tick, stage, part in found}
        expect(
            [len(found), len(when), sorted(found)],
            [stages * parts, stages * parts, found],
            call=f"entries, different ones, and the order of schedule({stages}, {parts})",
        )
        wrong = [
            (stage, part)
            for stage, part in when
            if when[stage, part]
            != max([when.get((stage - 1, part), -1), when.get((stage, part - 1), -1)]) + 1
        ]
        expect(
            wrong,
            [],
            call=f"(stage, micro-batch) of schedule({stages}, {parts}) too early or late",
        )


@pytest.mark.check(task=6, points=1, title="The bubble")
def test_bubble():
    expect(
        [bubble(*sizes) for sizes in ((1, 1), (2, 1), (2, 2), (4, 1), (4, 9), (8, 57))],
        [0.0, 1 / 2, 1 / 3, 3 / 4, 1 / 4, 7 / 64],
        call="bubble of (stages, micro-batches) = (1, 1), (2, 1), (2, 2), (4, 1), (4, 9), (8, 57)",
        cause="(S - 1) / (m + S - 1): of m + S - 1 ticks each stage works m",
    )
    for stages, parts in product(range(1, 6), range(1, 7)):
        found = schedule(stages, parts)
        ticks = max(tick for tick, _, _ in found) + 1
        expect(
            bubble(stages, parts),
            1 - len(found) / (stages * ticks),
            call=f"bubble({stages}, {parts}), against the empty places of the schedule",
        )


@torch.inference_mode()
def in_stages(model, num_stages, ids, positions):
    """Hidden states and logits by stages, one after another in this thread."""
    x = ids
    for number in range(num_stages):
        stage = Stage(model, number, num_stages)
        x = stage(x, positions, RecomputeAttend(stage.config))
    return x, stage.logits(x[-2:])


@pytest.mark.check(task=6, points=3, title="Stages make the whole model")
def test_stages():
    ids, positions = tokens_of(7), torch.arange(7)
    for family, tied in product(("qwen3", "qwen2", "llama", "gpt2"), (False, True)):
        config = shape(family=family, tied=tied)
        model = dummy_model(config, seed=3)
        with torch.inference_mode():
            hidden = model(ids, positions, RecomputeAttend(config))
            logits = model.logits(hidden[-2:])
        for stages in (1, 2, 3, 5):
            found = in_stages(model, stages, ids, positions)
            what = f"a {'tied ' * tied}{family} model of 5 layers in {stages} stages"
            expect(found[0], hidden, call=f"hidden states of {what}",
                   cause="the first stage embeds, the last norm is the last stage's")  # fmt: skip
            expect(found[1], logits, call=f"logits of {what}")
    for tied in (False, True):
        model = dummy_model(shape(tied=tied), seed=3)
        model.__class__ = type("Doubled", (type(model),), {"logits": doubled})
        with torch.inference_mode():
            hidden = model(ids, positions, RecomputeAttend(model.config))
            logits = model.logits(hidden[-2:])
        expect(
            in_stages(model, 2, ids, positions)[1],
            logits,
            call=f"logits of a {'tied ' * tied}model in 2 stages, whose `logits` are its own",
            cause="perhaps the last stage multiplies by the table itself; a ParallelTransformer's "
            "`logits` join the scores of all ranks",
        )


def doubled(model, hidden):
    """Scores that the table alone does not give."""
    return 2 * super(type(model), model).logits(hidden)


@pytest.mark.check(task=6, points=2, title="A stage has a cache of its own layers")
def test_stage_cache():
    windows = (3, None, 5, None, 4)
    config = shape(windows=windows)
    model = dummy_model(config, seed=5)
    ids = tokens_of(9)
    with torch.inference_mode():
        hidden = model(ids, torch.arange(9), RecomputeAttend(config))
    for stages in (2, 3):
        parts = [Stage(model, number, stages) for number in range(stages)]
        ranges = layer_ranges(5, stages)
        expect(
            [(part.config.num_layers, part.config.windows) for part in parts],
            [(len(mine), windows[mine.start : mine.stop]) for mine in ranges],
            call=f"num_layers and windows of the configs of {stages} stages, windows {windows}",
            cause="config is that of a model with the stage's layers alone",
        )
        expect(
            [replace(part.config, num_layers=5, windows=windows) for part in parts],
            [config] * stages,
            call="all else of their configs",
        )
        told = [[] for _ in parts]
        caches = [ContiguousCache(part.config, 9) for part in parts]

        def attend(at, layer, q, k, v, told=told, caches=caches):
            told[at].append(layer)
            return caches[at].attend(layer % caches[at].k.shape[0], q, k, v)

        rows = []
        for start, end in ((0, 4), (4, 5), (5, 9)):
            x = ids[start:end]
            with torch.inference_mode():
                for at, part in enumerate(parts):
                    x = part(x, torch.arange(start, end), lambda *args, at=at: attend(at, *args))
                    caches[at].advance(end - start)
            rows.append(x)
        expect(
            told,
            [list(range(len(mine))) * 3 for mine in ranges],
            call=f"layer numbers that the attend of each of {stages} stages is told in 3 steps",
            cause="its cache has the stage's layers only, so they are counted from 0",
        )
        expect(
            torch.cat(rows),
            hidden,
            call=f"hidden states of {stages} stages with a ContiguousCache each, in chunks",
        )
        whole, recompute = [], RecomputeAttend(config)

        def watched(layer, q, k, v, whole=whole, recompute=recompute):
            whole.append(layer)
            return recompute(layer % 5, q, k, v)

        with torch.inference_mode():
            again = model(ids, torch.arange(9), watched)
        expect(whole, list(range(5)), cause="the model is not changed",
               call=f"layer numbers the whole model tells after {stages} stages of it")  # fmt: skip
        expect(again, hidden, call=f"the model's hidden states after {stages} stages of it")


@pytest.mark.check(task=6, points=1, title="A stage holds no other weights")
def test_stage_weights():
    for tied in (False, True):
        config = shape(tied=tied)
        model = dummy_model(config)
        weights = model.state_dict()
        for stages in (1, 2, 3):
            parts, wanted = [Stage(model, number, stages) for number in range(stages)], []
            for number, mine in enumerate(layer_ranges(5, stages)):
                last = number == stages - 1
                names = [f"layers.{layer}." for layer in mine]
                names += ["embed_tokens."] * (number == 0 or (last and tied))
                names += ["norm.", "lm_head."] * last
                wanted.append(sorted(n for n in weights if n.startswith(tuple(names))))
            expect(
                [sorted(part.state_dict()) for part in parts],
                wanted,
                call=f"names of the weights of {stages} stages of a {'tied ' * tied}model",
                cause="the model's own names, and only those of the stage's layers, of the "
                "embedding in the first (and the last, if tied), of norm and head in the last",
            )
            copies = [
                name
                for part in parts
                for name, weight in part.state_dict().items()
                if weight.data_ptr() != weights[name].data_ptr()
            ]
            expect(
                copies,
                [],
                call=f"weights that lie elsewhere than the {'tied ' * tied}model's own, in "
                f"{stages} stages",
                cause="a stage has the model's modules themselves: copies take their memory twice",
            )
        with torch.device("meta"):
            empty = type(model)(config)
        stage = Stage(empty, 1, 2)
        stage.to_empty(device="cpu")
        stage.load_state_dict({name: model.state_dict()[name] for name in stage.state_dict()})
        whole = Stage(model, 1, 2)
        x = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            expect(
                stage.logits(stage(x, torch.arange(3), RecomputeAttend(stage.config))),
                whole.logits(whole(x, torch.arange(3), RecomputeAttend(whole.config))),
                call="logits of a last stage whose weights came after it was made",
            )
        expect(
            sorted(model.state_dict()),
            sorted(dummy_model(config).state_dict()),
            call="the model's own weights, after stages were made of it",
        )


def batches_of(stage, lengths, seed=0, log=None):
    """Micro-batches of these lengths, each with an attend that knows the stage's config."""

    def attend_of(part):
        recompute = RecomputeAttend(stage.config)

        def attend(layer, q, k, v):
            if log is not None and layer == 0:
                log.append(part)
            return recompute(layer, q, k, v)

        return attend

    return [
        MicroBatch(tokens_of(length, seed + part), torch.arange(length), attend_of(part))
        for part, length in enumerate(lengths)
    ]


def run_pipeline(model, num_stages, lengths, seed=0):
    """What each rank returns, its order of work, and its counts."""

    def work(comm):
        log = []
        stage = Stage(model, comm.rank, comm.size)
        with torch.inference_mode():
            found = run_stage(stage, comm, batches_of(stage, lengths, seed, log))
        return found, log, comm.counts.messages, comm.counts.bytes

    return run_ranks(num_stages, work, timeout=20.0)


def whole_model(model, lengths, seed=0):
    with torch.inference_mode():
        return [
            model(part.token_ids, part.positions, part.attend)
            for part in batches_of(model, lengths, seed)
        ]


@pytest.mark.check(task=6, points=2, title="Micro-batches through the stages")
def test_run_stage():
    model = dummy_model(shape(), seed=7)
    wide = replace(shape(3, "llama"), head_dim=6)  # H x D = 24, E = 16
    half = dummy_model(wide, seed=1, dtype=torch.bfloat16)
    expect(
        run_pipeline(half, 2, (3, 2))[-1][0],
        whole_model(half, (3, 2)),
        call="what the last of two stages returns, of a model in bfloat16, E = 16, H x D = 24",
        cause="hidden states are [T, E], and have the dtype of the model's weights",
    )
    for stages, lengths in ((1, (3, 2)), (2, (4,)), (2, (3, 1, 5)), (3, (2, 6)), (5, (1, 4, 2, 3))):
        ranks = run_pipeline(model, stages, lengths)
        call = f"run_stage with {stages} stages and micro-batches of {lengths} tokens"
        expect(
            ranks[-1][0], whole_model(model, lengths), call=f"what the last rank returns, {call}"
        )
        expect(
            [found for found, _, _, _ in ranks[:-1]],
            [[]] * (stages - 1),
            call=f"what the other ranks return, {call}",
        )
        expect(
            [log for _, log, _, _ in ranks],
            [list(range(len(lengths)))] * stages,
            call=f"the order in which each rank computes the micro-batches, {call}",
        )
        expect(
            [(messages, sent) for _, _, messages, sent in ranks],
            [(len(lengths), sum(lengths) * 16 * 4)] * (stages - 1) + [(0, 0)],
            call=f"(messages, bytes) that each rank sends, {call}",
            cause="hidden states [T, E] of each micro-batch, once, to the next stage",
        )


@pytest.mark.check(task=6, points=1, title="All stages are busy")
def test_overlap():
    model = dummy_model(shape(), seed=7)

    def work(comm):
        log = []
        stage = Stage(model, comm.rank, comm.size)
        parts = batches_of(stage, (2, 2, 2), log=log)
        sends = []
        start_send = comm._start_send

        def noted(x, to):
            sends.append(len(log))
            return start_send(x, to)

        comm._start_send = noted
        with torch.inference_mode():
            run_stage(stage, comm, parts)
        return sends

    sends = run_ranks(3, work, timeout=20.0)
    expect(
        sends[:2],
        [[1, 2, 3]] * 2,
        call="how many micro-batches stages 0 and 1 have begun when they send; three in all",
        cause="perhaps a micro-batch is sent after the next one is begun: the next stage waits",
    )


@pytest.mark.check(task=6, points=1, title="Random pipelines", stress=True)
def test_random(rng):
    for _ in range(8):
        seed = int(rng.integers(1000))
        family = str(rng.choice(["qwen3", "llama", "gpt2"]))
        layers = int(rng.integers(1, 7))
        config = shape(layers, family, tied=rng.random() < 0.5)
        model = dummy_model(config, seed)
        if rng.random() < 0.3:
            model = model.to(torch.bfloat16)
        stages = int(rng.integers(1, layers + 1))
        lengths = tuple(rng.integers(1, 7, size=int(rng.integers(1, 6))).tolist())
        ranks = run_pipeline(model, stages, lengths, seed)
        expect(
            ranks[-1][0],
            whole_model(model, lengths, seed),
            call=f"run_stage, {family}, {layers} layers in {stages} stages, micro-batches of "
            f"{lengths} tokens, seed {seed}",
        )

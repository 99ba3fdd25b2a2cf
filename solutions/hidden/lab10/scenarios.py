"""Hidden scenarios of lab 10: other paths than those of the visible checks."""

from grader.checks.scenarios import scenario

# task 1


def _whole(rng, *shape):
    """Whole numbers, whose sums are exact in any order."""
    import torch

    return torch.from_numpy(rng.integers(-50, 50, size=shape)).float()


def _calls(comm):
    """Calls, messages and bytes of each kind so far."""
    counts = sorted(comm.counts.by_kind.items())
    return [[kind, count.calls, count.messages, count.bytes] for kind, count in counts]


@scenario(task=1)
def groups_of_a_grid(nanovllm, rng):
    """Ranks in rows and columns: sums along a row, then joins along a column."""
    from nanovllm.parallel.collectives import all_reduce, gather_last
    from nanovllm.parallel.communicator import Subgroup
    from nanovllm.parallel.threads import run_ranks

    rows, columns = int(rng.integers(2, 4)), int(rng.integers(2, 4))
    width = int(rng.integers(1, 9))
    xs = [_whole(rng, 3, width) for _ in range(rows * columns)]

    def work(comm):
        row, column = divmod(comm.rank, columns)
        across = Subgroup(comm, [row * columns + i for i in range(columns)])
        down = Subgroup(comm, [i * columns + column for i in range(rows)])
        total = all_reduce(across, xs[comm.rank])
        mine = total.tensor_split(rows, dim=-1)[down.rank]
        joined = gather_last(down, mine, width)
        return [total, joined, _calls(across), _calls(down), sorted(across.counts.sent_to)]

    return {"ranks": run_ranks(rows * columns, work)}


@scenario(task=1)
def sums_of_sums(nanovllm, rng):
    """A result goes into the next call, in every dtype, on one rank and on many; x and results may
    have gaps, and what becomes of results at the end changes nobody's x."""
    import torch

    from nanovllm.parallel.collectives import all_gather, all_reduce, gather_last, reduce_scatter
    from nanovllm.parallel.threads import run_ranks

    def work(comm, xs, before):
        x, size = xs[comm.rank], xs[comm.rank].numel()
        own, wide = x.clone(memory_format=torch.contiguous_format), x.double().flatten(1)
        total = all_reduce(comm, x)
        run = reduce_scatter(comm, total + x)
        again = all_gather(comm, run, size)
        gaps = all_gather(comm, torch.stack([run, run], dim=1)[:, 0], size)
        twice = all_reduce(comm, again.view(x.shape)[:, :1])
        side = gather_last(comm, wide.tensor_split(comm.size, dim=-1)[comm.rank], wide.shape[1])
        mine = [all_reduce(comm, own), reduce_scatter(comm, own), all_gather(comm, run, size)]
        found = [one.clone() for one in (total, run, again, gaps, twice, side, *mine)]
        for one in mine:
            one.fill_(7)
        same = [torch.equal(x, before[comm.rank]), torch.equal(own, x), torch.equal(run, found[1])]
        return [found, same, _calls(comm)]

    story = []
    for dtype in (torch.float32, torch.float64, torch.int32):
        for size in (1, int(rng.integers(2, 8))):
            shape = rng.integers(3, 6, size=3).tolist()
            xs = [_whole(rng, *shape).to(dtype).permute(2, 0, 1) for _ in range(size)]
            before = [x.clone() for x in xs]
            story.append(run_ranks(size, lambda comm, x=xs, y=before: work(comm, x, y)))
    return {"story": story}


@scenario(task=1)
def bits_of_a_sum(nanovllm, rng):
    """Numbers of all sizes: whether ranks have the same bits, and how far the sum is from exact."""
    import torch

    from nanovllm.parallel.collectives import all_reduce
    from nanovllm.parallel.threads import run_ranks

    size, count = int(rng.integers(2, 9)), int(rng.integers(1, 60))
    xs = [
        torch.from_numpy(rng.normal(size=count) * 10.0 ** rng.integers(-4, 5)).float()
        for _ in range(size)
    ]
    sums = run_ranks(size, lambda comm: all_reduce(comm, xs[comm.rank]))
    exact = torch.stack(xs).double().sum(0)
    largest = torch.stack(xs).abs().sum(0)
    return {
        "x": xs,
        "same bits": [torch.equal(one, sums[0]) for one in sums],
        "near": [bool(((one - exact).abs() <= 1e-5 * largest).all()) for one in sums],
    }


# task 2


@scenario(task=2)
def tables_of_shares(nanovllm, rng):
    """Shares and heads of many shapes, which of them are refused, and that all else stays."""
    from dataclasses import replace

    from nanovllm.model.config import ModelConfig, RopeScaling
    from nanovllm.parallel import shards
    from nanovllm.parallel.errors import ParallelError

    story = []
    for _ in range(40):
        groups, size = int(rng.integers(1, 13)), int(rng.integers(1, 13))
        heads = groups * int(rng.integers(1, 9))
        config = ModelConfig(
            "qwen3", 9, 8, 3, heads, groups, 4, 8, 16, rope_theta=float(rng.integers(5, 99)),
            rope_scaling=RopeScaling("linear", float(rng.integers(2, 9)), 8), windows=(3, None, 5),
            tie_embeddings=bool(rng.integers(2)), bos_token_id=int(rng.integers(9)),
        )  # fmt: skip
        rank, total = int(rng.integers(size)), int(rng.integers(0, 99))
        share = list(shards.share(total, size, rank))
        try:
            mine = shards.rank_config(config, size, rank)
            keys = list(shards.kv_heads(config, size, rank))
            rows = list(shards.rows_of_heads(keys, config.head_dim))
            queries = list(shards.query_heads(config, size, rank))
            same = replace(mine, num_heads=heads, num_kv_heads=groups) == config
            story.append([share, queries, keys, rows, mine.num_heads, mine.num_kv_heads, same])
        except ParallelError:
            story.append([share, "refused"])
    return {"story": story}


@scenario(task=2)
def a_network_of_linears(nanovllm, rng):
    """Merged, multiplied part by part, summed; in float64, on weights of an own order of rows.

    One part is wider than the others, and nobody reads more than its own rows and columns.
    """
    import torch

    from nanovllm.parallel.linears import MergedColumnParallelLinear, RowParallelLinear
    from nanovllm.parallel.shards import share
    from nanovllm.parallel.stored import Reads, StoredTensor
    from nanovllm.parallel.threads import run_ranks

    size, width = int(rng.integers(2, 6)), int(rng.integers(1, 9))
    inner, out = int(rng.integers(1, 12)), int(rng.integers(1, 6))
    rows, bias = {"a": inner, "wide": inner + size, "b": inner, "c": inner}, bool(rng.integers(2))
    weights = {f"m.{name}.weight": _whole(rng, n, width) for name, n in rows.items()}
    weights |= {f"m.{name}.bias": _whole(rng, n) for name, n in rows.items()}
    weights |= {"o.weight": _whole(rng, out, inner), "o.bias": _whole(rng, out)}
    x, order = _whole(rng, 2, 2, width), rng.permutation(inner).tolist()

    def work(comm):
        reads = Reads()
        tensors = {name: StoredTensor(weight, reads) for name, weight in weights.items()}
        mine = [order[i] for i in share(inner, comm.size, comm.rank)]
        parts = dict.fromkeys(rows, mine) | {"wide": share(inner + size, comm.size, comm.rank)}
        merged = MergedColumnParallelLinear(width, parts, bias).double()
        row = RowParallelLinear(comm, mine, out, bias).double()
        merged.load(tensors, "m")
        read = [reads.bytes]
        row.load(tensors, "o")
        read.append(reads.bytes)
        a, wide, b, c = merged(x.double())
        outs = [row(a * b - c), a, wide, c]
        trained = [one.requires_grad for one in (*outs, *merged.parameters(), *row.parameters())]
        return [outs, read, any(trained), _calls(comm), merged.weight.dtype is torch.float64]

    return {"ranks": run_ranks(size, work)}


# task 3


@scenario(task=3)
def tokens_out_and_in(nanovllm, rng):
    """Whole numbers through embedding and head, of several steps on the same modules.

    Once more ranks than tokens, once shares of different lengths; and a table with infinite rows.
    """
    import torch

    from nanovllm.parallel.stored import Reads, StoredTensor
    from nanovllm.parallel.threads import run_ranks
    from nanovllm.parallel.vocabulary import VocabParallelEmbedding, parallel_logits

    story = []
    for few in rng.permutation([True, False]):
        size, width = int(rng.integers(2, 9)), int(rng.integers(1, 9))
        vocab = int(rng.integers(1, size)) if few else size * int(rng.integers(2, 6)) + 1
        table, head = _whole(rng, vocab, width), _whole(rng, vocab, width)
        infinite = table.clone()
        for rows in infinite.tensor_split(size):
            rows[:1] = rows[-1:] = float("inf")  # the ends of each share
        steps = [_whole(rng, int(rng.integers(0, 7))).abs().long() % vocab for _ in range(3)]
        steps.append(torch.from_numpy(rng.permutation(vocab)))

        def work(comm, table=table, head=head, infinite=infinite, steps=steps):
            reads, told = Reads(), []
            embedding = VocabParallelEmbedding(comm, *table.shape)
            embedding.load({"e.weight": StoredTensor(table, reads)}, "e")
            odd = VocabParallelEmbedding(comm, *table.shape)
            odd.load({"e.weight": StoredTensor(infinite, Reads())}, "e")
            mine = head.tensor_split(comm.size)[comm.rank]
            for step in steps:
                ids = step.clone()
                rows = embedding(ids)
                scores = [
                    parallel_logits(comm, rows[-2:], one, len(table))
                    for one in (mine, embedding.weight)
                ]
                told.append([rows, *scores, odd(ids), torch.equal(ids, step)])
            return [told, reads.bytes, embedding.weight.requires_grad, _calls(comm)]

        story.append(run_ranks(size, work))
    return {"story": story}


# task 4


def _stored(model):
    from nanovllm.parallel.stored import Reads, StoredTensor

    return {name: StoredTensor(weight, Reads()) for name, weight in model.state_dict().items()}


def _config(rng, family):
    """A random shape whose heads some numbers of ranks divide."""
    from nanovllm.model.config import ModelConfig

    groups = int(rng.integers(1, 4))
    heads = groups * int(rng.choice([2, 4]))
    layers, groups = int(rng.integers(1, 4)), heads if family == "gpt2" else groups
    return ModelConfig(
        family,
        int(rng.integers(3, 70)),
        4 * heads,
        layers,
        heads,
        groups,
        4,
        int(rng.integers(1, 30)),
        40,
        norm_eps=0.1,
        windows=tuple(rng.choice([2, 5], size=layers).tolist()) if family == "mistral" else (),
        tie_embeddings=bool(rng.integers(2)),
        qk_norm=family == "qwen3",
        qkv_bias=family in ("qwen2", "gpt2"),
        output_bias=family == "gpt2",
        mlp_bias=family == "gpt2",
    )


@scenario(task=4)
def greedy_on_ranks(nanovllm, rng):
    """Some tokens greedily, without a cache: each rank chooses by itself, and goes on with it.

    GPT-2 and two others, on several ranks, which have the same bits.
    """
    import torch

    from nanovllm.model.attend import RecomputeAttend
    from nanovllm.model.loader import dummy_model
    from nanovllm.parallel.loading import load_weights
    from nanovllm.parallel.threads import run_ranks
    from nanovllm.parallel.transformer import ParallelTransformer

    story = []
    families = rng.permutation(["llama", "mistral", "qwen2", "qwen3"])[:2].tolist()
    for family in rng.permutation([*families, "gpt2"]).tolist():
        config = _config(rng, family)
        whole = dummy_model(config, seed=int(rng.integers(1000)))
        prompt = rng.integers(0, config.vocab_size, size=4).tolist()
        sizes = [n for n in (2, 3, 4) if config.num_heads % n == 0]
        size = int(rng.choice(sizes))

        @torch.inference_mode()
        def work(comm, config=config, whole=whole, prompt=prompt):
            model, ids, scores, states = ParallelTransformer(config, comm), list(prompt), [], []
            load_weights(model, _stored(whole))
            comm.counts.clear()
            for _ in range(5):
                tokens, attend = torch.tensor(ids), RecomputeAttend(model.config)
                states.append(model(tokens, torch.arange(len(ids)), attend)[-1:])
                scores.append(model.logits(states[-1]))
                ids.append(int(scores[-1].argmax()))
            bits = torch.cat([*scores, *states], dim=1)
            return [ids, torch.cat(scores), _calls(comm), model.config.num_kv_heads], bits

        found, bits = zip(*run_ranks(size, work), strict=True)
        same = [torch.equal(one, bits[0]) for one in bits]
        story.append([*found[0], [one[0] == found[0][0] for one in found], same, found[-1][2]])
    return {"story": story}


@scenario(task=4)
def bytes_of_the_bundled_model(nanovllm, rng):
    """The course's own model from its files: bytes read and sent, and the best tokens."""
    from pathlib import Path

    import torch

    from nanovllm.model.attend import RecomputeAttend
    from nanovllm.parallel.checkpoint import Checkpoint
    from nanovllm.parallel.loading import load_shard
    from nanovllm.parallel.threads import run_ranks

    folder = Path(nanovllm.__file__).parent.parent / "models" / "draft"
    size = int(rng.choice([1, 2, 4]))
    ids = torch.from_numpy(rng.integers(0, 500, size=12))

    @torch.inference_mode()
    def work(comm):
        checkpoint = Checkpoint(folder)
        model = load_shard(checkpoint, comm)
        hidden = model(ids, torch.arange(12), RecomputeAttend(model.config))
        best = model.logits(hidden).topk(3)
        return [best.indices[:, 0], best.values, checkpoint.reads.bytes, _calls(comm)]

    return {"ranks": run_ranks(size, work)}


# task 5


class _Seat:
    """A rank in a thread, whose worker may end or fall silent on demand.

    `fault(number, answer)`: what becomes of the worker's answers, in their order.
    """

    def __init__(self, rank, share, fault=None):
        import threading

        from nanovllm.parallel.line import make_line
        from nanovllm.parallel.worker import run_worker

        self.rank, self.stops, self.killed, self.raised = rank, 0, False, False
        self.line, self.there = make_line(patience=20.0)
        between, mine = make_line() if fault else (None, self.there)
        load = share if callable(share) else lambda: share

        def work():
            try:
                run_worker(mine, load)
            except Exception:
                self.raised = True
            mine.close()

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()
        if fault:
            threading.Thread(target=self._pass_on, args=(between, fault), daemon=True).start()

    def _pass_on(self, between, fault):
        from nanovllm.parallel.line import LineError, ready

        number = 0
        try:
            while True:
                for end in ready([self.there, between]):
                    if end is self.there:
                        between.send(end.receive())
                        continue
                    for answer in fault(number, end.receive()):
                        self.there.send(answer)
                    number += 1
        except (LineError, OSError):
            between.close()
            self.there.close()

    def kill(self):
        self.killed = True
        self.there.cut()

    @property
    def alive(self):
        return not self.killed and self.thread.is_alive()

    def why_ended(self):
        return "killed in a scenario"

    def stop(self, grace):
        import time
        from contextlib import suppress

        time.sleep(0.02)  # who does not wait for it goes on meanwhile
        self.stops += 1
        with suppress(OSError):  # it may have left by itself
            self.kill()


def _ledger(nanovllm, rank, size, answering, blocks, wait=None):
    """A share that keeps a ledger, as a cache would: what was skipped or done twice is seen."""
    import threading

    import torch

    from nanovllm.parallel.executor_interface import RankFacts

    class Share:
        def __init__(self):
            self.facts = RankFacts(rank, rank == answering, "files", blocks, 5 * rank + 1, 7)
            self.ledger, self.reserved, self.busy = [], None, threading.Event()
            self.memory = torch.zeros(3)

        def reserve(self, num_blocks):
            self.reserved = num_blocks, torch.is_inference_mode_enabled()

        def write(self, entry):
            self.ledger.append(entry)
            self.memory += entry
            return self.memory

        def read(self):
            return rank, self.reserved, list(self.ledger), torch.is_inference_mode_enabled()

        def refuse(self, entry, ranks):
            if rank in ranks:
                raise LookupError(f"entry {entry} on rank {rank}")
            return self.write(entry)

        def differ(self):
            raise (LookupError, ArithmeticError)[rank == answering]("the same words")

        def fail(self, error):
            raise error()

        def much(self):
            return torch.zeros(10_000)

        def lock(self):
            return threading.Lock()

        def hang(self):
            self.busy.set()
            wait.wait(15.0)

        def hang_and_refuse(self):
            self.hang()
            raise LookupError(f"late on rank {rank}")

    return Share()


def _outcome(action):
    """The result, or the name of the error."""
    try:
        return action()
    except Exception as error:
        return _kind(error)


def _kind(error):
    """The name of an error of the lab or of Python, also of one that is derived from it."""
    kinds = type(error).__mro__
    return next(k.__name__ for k in kinds if k.__module__.endswith(("builtins", ".errors")))


def _stopped(seats):
    return [seat.stops > 0 for seat in seats]


@scenario(task=5)
def ledgers_on_every_rank(nanovllm, rng):
    """Many calls, some of which all ranks refuse, each in its own words; then the ledger of each
    rank, from inside, and who sends how much."""
    from nanovllm.parallel.executor import Executor

    size = int(rng.integers(2, 5))
    answering = int(rng.integers(size))
    blocks = rng.integers(1, 50, size=size).tolist()
    shares = [_ledger(nanovllm, r, size, answering, blocks[r]) for r in range(size)]
    seats = [_Seat(rank, share) for rank, share in enumerate(shares)]
    executor = Executor(seats, timeout=20.0, start_timeout=20.0)
    story, calls = [executor.num_blocks], int(rng.integers(5, 20))
    for entry in range(calls):
        if entry == calls // 2 or rng.random() < 0.3:
            story.append(_outcome(lambda e=entry: executor.call("refuse", e, list(range(size)))))
        else:
            story.append(executor.call("write", entry))
    story.append(executor.call("read"))
    before = [seat.there.bytes_sent for seat in seats]
    story.append(len(executor.call("much")))
    for _ in range(2):  # also after the end
        rows = [(r.rank, r.weight_bytes, r.kv_bytes, r.last_call) for r in executor.rows()]
        story.append(rows)
        executor.close()
    for seat in seats:
        seat.thread.join(15.0)
    sent = [seat.there.bytes_sent - n > 5_000 for seat, n in zip(seats, before, strict=True)]
    ledgers = [(share.ledger, share.reserved, share.memory) for share in shares]
    return {"story": story, "ledgers": ledgers, "sent": sent, "ended": _stopped(seats)}


@scenario(task=5)
def ends_of_ranks(nanovllm, rng):
    """A rank is killed between two calls or in one, its line may stay open; it refuses alone, or
    all do for different reasons: what is said, how soon, and what is left."""
    import threading
    import time

    from nanovllm.parallel.errors import ExecutorDied
    from nanovllm.parallel.executor import Executor

    story = []
    for how in rng.permutation(["between", "within", "unseen", "alone", "differ"]).tolist():
        size = int(rng.integers(2, 5))
        wait = threading.Event()
        shares = [_ledger(nanovllm, r, size, 0, 3, wait) for r in range(size)]
        seats = [_Seat(rank, share) for rank, share in enumerate(shares)]
        executor = Executor(seats, timeout=12.0, start_timeout=20.0, grace=0.3)
        victim = int(rng.integers(size))
        first = executor.call("write", 1)
        action, found = ("hang",), type(executor.failure).__name__
        if how == "between":
            seats[victim].kill()
            action, found = ("write", 2), type(executor.failure).__name__
        elif how == "within":
            threading.Timer(0.02, seats[victim].kill).start()
        elif how == "unseen":
            threading.Timer(0.1, setattr, (seats[victim], "killed", True)).start()
        else:
            action = ("refuse", 2, [victim]) if how == "alone" else ("differ",)
        start, said = time.monotonic(), None
        try:
            executor.call(*action)
        except ExecutorDied as error:
            said = how == "differ" or str(victim) in str(error)
        soon, gone = time.monotonic() - start < 8, _stopped(seats)
        wait.set()
        after = _outcome(lambda e=executor: e.call("read"))
        failure = type(executor.failure).__name__
        executor.close()
        story.append([how, first, found, said, soon, gone, after, failure, _stopped(seats)])
    return {"story": story}


@scenario(task=5)
def ranks_of_unequal_speed(nanovllm, rng):
    """Answers come further apart than the grace, which is for errors alone; then errors that come
    late, but soon after one another."""
    import threading

    from nanovllm.parallel.executor import Executor

    size = int(rng.integers(2, 4))
    order, story = rng.permutation(size).tolist(), []
    for method, grace, begin, step in (("hang", 0.1, 0.02, 0.4), ("hang_and_refuse", 2, 2.3, 0.1)):
        gates = [threading.Event() for _ in range(size)]
        shares = [_ledger(nanovllm, r, size, size - 1, 3, gate) for r, gate in enumerate(gates)]
        seats = [_Seat(rank, share) for rank, share in enumerate(shares)]
        executor = Executor(seats, timeout=20.0, start_timeout=20.0, grace=grace)
        for place, rank in enumerate(order):
            threading.Timer(begin + step * place, gates[rank].set).start()
        story.append(_outcome(lambda e=executor, m=method: e.call(m)))
        story.append(_outcome(lambda e=executor: e.call("read")))
        executor.close()
    return {"order": order, "story": story}


@scenario(task=5)
def ranks_that_say_nothing(nanovllm, rng):
    """One of two ranks is silent: its last call meanwhile, and whether the end says which it is."""
    import threading

    from nanovllm.parallel.executor import Executor

    calls, sentences, story = int(rng.integers(0, 6)), [], []
    for silent in rng.permutation(2).tolist():
        gates = [threading.Event() for _ in range(2)]
        gates[1 - silent].set()
        shares = [_ledger(nanovllm, r, 2, 0, 3, gate) for r, gate in enumerate(gates)]
        seats = [_Seat(rank, share) for rank, share in enumerate(shares)]
        executor = Executor(seats, timeout=3.0, start_timeout=20.0)
        for entry in range(calls):
            executor.call("write", entry)
        rows = []

        def look(share=shares[silent], executor=executor, rows=rows):
            share.busy.wait(15.0)
            rows.extend(executor.rows())

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        story.append(_outcome(lambda e=executor: e.call("hang")))
        looking.join(15.0)
        sentences.append(str(executor.failure))
        story.append([silent, rows[silent].last_call, _stopped(seats)])
        gates[silent].set()
        executor.close()
    return {"story": story, "told apart": sentences[0] != sentences[1]}


@scenario(task=5)
def answers_that_come_again(nanovllm, rng):
    """An answer comes twice, or an older one once more: noticed in that call or the next."""
    from nanovllm.parallel.executor import Executor

    story = []
    for back in rng.permutation([0, 1, 3]).tolist():  # 0: all is well
        size, at = int(rng.integers(1, 4)), int(rng.integers(3, 7))
        kept, victim = [], int(rng.integers(size))

        def fault(number, answer, kept=kept, at=at, back=back):
            kept.append(answer)
            return [kept[-back], answer] if back and number == at else [answer]

        shares = [_ledger(nanovllm, r, size, 0, 3) for r in range(size)]
        faults = [fault if r == victim else None for r in range(size)]
        seats = [_Seat(r, s, f) for r, (s, f) in enumerate(zip(shares, faults, strict=True))]
        executor = Executor(seats, timeout=12.0, start_timeout=20.0)
        calls = [_outcome(lambda e=executor, i=i: e.call("write", i)) for i in range(at - 2)]
        ends = [_outcome(lambda e=executor: e.call("read")) for _ in range(3)]
        story.append([back, calls, "ExecutorDied" in ends, ends[-1]])
        executor.close()
    return {"story": story}


@scenario(task=5)
def errors_and_results_that_do_not_travel(nanovllm, rng):
    """Errors of local classes, one of which cannot be made again; results and arguments that
    cannot be pickled; and calls between them."""
    import threading

    from nanovllm.parallel.executor import Executor

    class Local(Exception):
        pass

    class Broken(Exception):
        def __reduce__(self):
            return int, ("no number",)

    share = _ledger(nanovllm, 0, 1, 0, 3)
    share.fail_of = lambda kind, words: share.fail(lambda: (Local, Broken, KeyError)[kind](words))
    executor, story = Executor([_Seat(0, share)], timeout=12.0, start_timeout=20.0), []
    for number in rng.permutation(5).tolist():
        words = f"words {int(rng.integers(1000))}"
        try:
            if number < 3:
                executor.call("fail_of", number, words)
            else:
                executor.call(*(("lock",) if number == 3 else ("write", threading.Lock())))
        except Exception as error:
            name, said = type(error).__name__, str(error)
            kind = ("Local", "Broken", "KeyError", "", "")[number]
            known = name if kind else name != "ExecutorDied"  # of pickle, whichever it raises
            story.append([known, kind in name + said, not kind or words in said])
        story.append(_outcome(lambda n=number: executor.call("write", n)))
    executor.close()
    return {"story": story, "ledger": share.ledger}


@scenario(task=5)
def starts_that_fail(nanovllm, rng):
    """Ranks of which some, all or none load, soon or late, with facts that may not go together."""
    import time

    from nanovllm.parallel.errors import ExecutorDied, ParallelError
    from nanovllm.parallel.executor import Executor

    def broken(seconds):
        time.sleep(seconds)
        raise ParallelError("too many ranks")

    story = []
    for how in rng.permutation(["all", "one", "late", *["any"] * 4]).tolist():
        size, shares = int(rng.integers(1 if how == "any" else 2, 4)), []
        early = int(rng.integers(size))
        for rank in range(size):
            blocks = int(rng.integers(0, 3)) + int(rng.random() < 0.8 or how != "any")
            share = _ledger(nanovllm, rank, size, 0, blocks)
            fails = {"one": rank == early, "any": rng.random() < 0.3}.get(how, True)
            late = how == "late" and rank != early
            shares.append((lambda s=0.7 * late: broken(s)) if fails else share)
        seats = [_Seat(rank, share) for rank, share in enumerate(shares)]
        try:
            executor = Executor(seats, timeout=12.0, start_timeout=20.0, grace=5.0)
            story.append(executor.num_blocks)
            executor.close()
        except (ExecutorDied, ParallelError) as error:
            story.append(_kind(error))
        story.append(_stopped(seats))
    return {"story": story}


@scenario(task=5)
def a_line_with_nobody_at_the_other_end(nanovllm, rng):
    """The worker alone: its line closes after some calls, in the middle of one, or before any; or
    stays open, but there is nothing to load."""
    from nanovllm.parallel.executor import Executor

    def broken():
        raise OSError("no such file")

    story = []
    for _ in range(3):
        share = _ledger(nanovllm, 0, 1, 0, 4)
        seat = _Seat(0, share)
        executor = Executor([seat], timeout=20.0, start_timeout=20.0)
        calls = int(rng.integers(0, 4))
        for entry in range(calls):
            executor.call("write", entry)
        seat.line.cut()  # also where the driver has a thread that reads it
        seat.thread.join(15.0)
        story.append([calls, share.ledger, seat.thread.is_alive(), seat.raised])
    seat = _Seat(0, broken)
    seat.thread.join(8.0)
    story.append([seat.thread.is_alive(), seat.raised, seat.there.sent])
    seat.line.close()
    return {"story": story}


# task 6


def _small(rng, layers):
    from nanovllm.model.config import ModelConfig

    family = str(rng.choice(["llama", "qwen2", "qwen3", "mistral", "gpt2"]))
    gpt2 = family == "gpt2"
    windows = tuple(int(w) or None for w in rng.choice([0, 2, 4], size=layers)) * (not gpt2)
    return ModelConfig(
        family, 40, 12, layers, 4, 4 if gpt2 else 2, 4, 20, 48, windows=windows,
        tie_embeddings=bool(rng.integers(2)), qk_norm=family == "qwen3",
        qkv_bias=family in ("qwen2", "gpt2"), output_bias=gpt2, mlp_bias=gpt2,
    )  # fmt: skip


@scenario(task=6)
def decoding_through_stages(nanovllm, rng):
    """A prompt, then tokens one by one, in stages with lab 02's contiguous caches of their own.

    There are inner stages; numbers are float64, and each stage has sent what it has before it goes
    on.
    """
    import torch

    from nanovllm.model.cache import ContiguousCache
    from nanovllm.model.loader import dummy_model
    from nanovllm.parallel.pipeline import MicroBatch, run_stage
    from nanovllm.parallel.stages import Stage
    from nanovllm.parallel.threads import run_ranks

    layers = int(rng.integers(3, 6))
    config, stages = _small(rng, layers), int(rng.integers(3, layers + 1))
    model = dummy_model(config, seed=int(rng.integers(100)), dtype=torch.float64)
    prompts = [rng.integers(0, 40, size=int(n)).tolist() for n in rng.integers(1, 7, size=3)]

    def work(comm):
        stage = Stage(model, comm.rank, comm.size)
        caches = [ContiguousCache(stage.config, 12, torch.float64) for _ in prompts]
        hidden, sent = [], []

        def attend(cache):
            def watched(layer, q, k, v):
                if layer == 0:
                    sent.append(comm.counts.messages)
                return cache.attend(layer, q, k, v)

            return watched

        with torch.inference_mode():
            for step in range(3):
                tokens = prompts if step == 0 else [[(7 * step + len(p)) % 40] for p in prompts]
                parts = [
                    MicroBatch(
                        torch.tensor(ids),
                        torch.arange(cache.length, cache.length + len(ids)),
                        attend(cache),
                    )
                    for ids, cache in zip(tokens, caches, strict=True)
                ]
                hidden.append(run_stage(stage, comm, parts))
                for ids, cache in zip(tokens, caches, strict=True):
                    cache.advance(len(ids))
            scores = stage.logits(torch.cat(hidden[-1])) if hidden[-1] else None
        used = [cache.k.abs().sum(dim=(1, 2, 3)) > 0 for cache in caches]
        return hidden, scores, used, [*sent, comm.counts.messages]

    ranks = run_ranks(stages, work, timeout=20.0)
    return {"last": ranks[-1][:2], "used": [r[2] for r in ranks], "sent": [r[3] for r in ranks],
            "others": [r[0] for r in ranks[:-1]]}  # fmt: skip


@scenario(task=6)
def stages_of_parallel_shapes(nanovllm, rng):
    """What stages hold: names, sizes of weights and of a cache, over random configs; and what the
    model itself, whose logits are its own, tells an attend after that."""
    import torch

    from nanovllm.model.transformer import Transformer
    from nanovllm.parallel.stages import Stage, layer_ranges

    story = []
    for _ in range(3):
        layers = int(rng.integers(2, 9))
        stages, told = int(rng.integers(2, layers + 1)), []
        with torch.device("meta"):
            model = Transformer(_small(rng, layers))
        model.__class__ = type("Other", (Transformer,), {"logits": lambda _, hidden: hidden - 7})
        for number in range(stages):
            stage = Stage(model, number, stages)
            shapes = {name: list(w.shape) for name, w in stage.state_dict().items()}
            config = stage.config
            windows = [config.window(layer) for layer in range(config.num_layers)]
            story.append([sorted(shapes.items()), config.num_layers, windows])
        story.append([list(mine) for mine in layer_ranges(layers, stages)])
        story.append(stage.logits(torch.arange(12.0)[None]))

        def attend(layer, q, k, v, told=told):
            told.append(layer)
            return q

        with torch.device("meta"):
            model(torch.arange(3), torch.arange(3), attend)
        story.append(told)
    return {"story": story}


@scenario(task=6)
def plans_of_pipelines(nanovllm, rng):
    """Schedules and bubbles of sizes beyond those of the checks."""
    from nanovllm.parallel.errors import ParallelError
    from nanovllm.parallel.pipeline import bubble, schedule
    from nanovllm.parallel.stages import layer_ranges

    story = []
    for _ in range(5):
        stages, parts = int(rng.integers(1, 12)), int(rng.integers(1, 20))
        story.append([schedule(stages, parts), round(bubble(stages, parts), 9)])
    refused = []
    for layers, stages in ((int(rng.integers(1, 5)), 9), (4, 0), (4, -2)):
        try:
            refused.append(len(layer_ranges(layers, stages)))
        except ParallelError:
            refused.append("refused")
    return {"story": story, "refused": refused}


# task 7


def _cluster(rng):
    """A model and a cluster whose figures were made up."""
    from nanovllm.model.config import ModelConfig
    from nanovllm.parallel.hardware import Card, Cluster, Link

    kv_heads, dim = int(rng.integers(1, 5)), int(rng.integers(1, 5)) * 2
    heads, tied = kv_heads * int(rng.integers(1, 5)), bool(rng.integers(2))
    width, layers = int(rng.integers(8, 40)), int(rng.integers(1, 10))
    family = str(rng.choice(["llama", "gpt2"]))
    if family == "gpt2":
        kv_heads = heads
    config = ModelConfig(
        family, int(rng.integers(30, 90)), width, layers, heads, kv_heads, dim, 2 * width, 64,
        tie_embeddings=tied,
    )  # fmt: skip
    near, far = (Link(*(float(x) for x in rng.uniform(1, 50, size=2))) for _ in range(2))
    memory = float(rng.uniform(3e4, 3e5))
    card = Card(float(rng.uniform(100, 1000)), float(rng.uniform(500, 9000)), memory)
    return config, Cluster(card, near, far, int(rng.integers(1, 6)))


@scenario(task=7)
def a_trace_under_every_layout(nanovllm, rng):
    """Lab 04's simulator with the student's cost in place of its own: when each token came."""
    from nanovllm.batching.budget import FixedBudget
    from nanovllm.batching.policies import make_policy
    from nanovllm.batching.scheduler import Scheduler
    from nanovllm.batching.simulated import CountingStore
    from nanovllm.batching.simulator import simulate
    from nanovllm.batching.traces import Arrival
    from nanovllm.generation.latency import ManualClock
    from nanovllm.parallel.costs import Layout, ParallelCost

    story = []
    for _ in range(4):
        config, cluster = _cluster(rng)
        trace = [
            Arrival(float(rng.uniform(0, 50)), int(rng.integers(1, 60)), int(rng.integers(1, 9)))
            for _ in range(6)
        ]
        layout = Layout(*(int(n) for n in rng.integers(1, 5, size=3)))
        cost = ParallelCost(config, cluster, layout)
        scheduler = Scheduler(
            CountingStore(1000), make_policy("fcfs"), FixedBudget(24), max_num_seqs=3,
            clock=ManualClock(),
        )  # fmt: skip
        run = simulate(trace, scheduler, cost)
        story.append([line.token_times for line in run.timelines])
    return {"story": story}


@scenario(task=7)
def models_on_clusters(nanovllm, rng):
    """Bytes, capacities, and the parts of steps of random models; GPT-2's two matrices, too."""
    from nanovllm.parallel.costs import Layout, ParallelCost

    story = []
    for _ in range(8):
        config, cluster = _cluster(rng)
        layout = Layout(*(int(n) for n in rng.integers(1, 7, size=3)))
        cost = ParallelCost(config, cluster, layout, int(rng.choice([1, 2, 4])))
        tokens, rows = int(rng.integers(1, 90)), int(rng.integers(0, 9))
        places = tokens + int(rng.integers(0, 500))
        story.append([
            cost.weight_bytes(), cost.kv_bytes(), cost.capacity(), list(cost.phase(tokens, places)),
            cost.tick_seconds(tokens, places), cost.ends_seconds(tokens, rows),
            cost.seconds(tokens, places, rows),
        ])  # fmt: skip
    return {"story": story}


@scenario(task=7)
def the_best_of_random_clusters(nanovllm, rng):
    """How fast the best layout is, and whether it fits; or that nothing does."""
    from nanovllm.parallel.costs import ParallelCost, best_layout
    from nanovllm.parallel.errors import ParallelError

    story = []
    for _ in range(12):
        config, cluster = _cluster(rng)
        cards, tokens = int(rng.integers(1, 9)), int(rng.integers(1, 200))
        places = tokens + int(rng.integers(0, 900))
        try:
            layout = best_layout(config, cluster, cards, tokens, places, 3, dtype_bytes=4)
        except ParallelError:
            story.append("does not fit")
            continue
        cost = ParallelCost(config, cluster, layout, 4)
        story.append([cost.seconds(tokens, places, 3), layout.cards <= cards])
    return {"story": story}


@scenario(task=7)
def halves_of_random_phases(nanovllm, rng):
    """Timelines of one to four parts, some empty, and what random steps gain; one has one token."""
    from nanovllm.parallel.costs import Layout, ParallelCost, Phase
    from nanovllm.parallel.overlap import exposed_seconds, halves, seconds_saved, timeline

    story = []
    for number in rng.permutation(8):
        parts = [
            [Phase(*(float(x) for x in rng.uniform(0, 3, size=2))) for _ in range(rng.integers(6))]
            for _ in range(rng.integers(1, 5))
        ]
        spans = timeline(parts)
        story.append([[list(span) for span in spans], exposed_seconds(spans)])
        config, cluster = _cluster(rng)
        cost = ParallelCost(
            config, cluster, Layout(int(rng.integers(1, 5)), int(rng.integers(1, 4)))
        )
        tokens = int(rng.integers(2, 400)) if number else 1
        saved = seconds_saved(cost, tokens, 3 * tokens)
        story.append([round(saved, 6), [len(part) for part in halves(cost, tokens, 3 * tokens)]])
    return {"story": story}

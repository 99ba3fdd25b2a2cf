"""Questions to guess at before lab 05 is written; your own code answers them."""

from grader.student.predict import Question


def empty_slots() -> float:
    from nanovllm.paging.block_table import blocks_for

    return 4 * blocks_for(9, 4) - 9


def computed_again() -> float:
    from nanovllm.batching.plan import Chunk, Plan
    from nanovllm.batching.request import Request
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sequence import Sequence
    from nanovllm.paging.manager import BlockManager

    manager, found = BlockManager(16, 16), 0
    for number in range(2):
        sequence = Sequence(list(range(64)), SamplingParams(), max_model_len=128, seed=0)
        sequence.request_id = number
        request = Request(number, sequence, 0.0, 70)
        found = manager.admit(request)
        manager.commit(Plan((Chunk(request, found, 64 - found, 64),)))
        request.num_computed_tokens = 64
        manager.release(request)
    return 64 - found


def copies() -> float:
    from nanovllm.paging.block_pool import BlockPool
    from nanovllm.paging.block_table import BlockTable
    from nanovllm.paging.sharing import fork, reserve

    pool, first = BlockPool(8), BlockTable(4, num_tokens=6)
    first.grow(pool, 6)
    tables, transfers = [first, fork(pool, first, 6), fork(pool, first, 6)], []
    for token in range(6, 9):
        for table in tables:
            reserve(pool, table, token, token + 1, transfers)
    return len(transfers)


def used_by_first_fit() -> float:
    from nanovllm.batching.traces import heavy_tailed
    from nanovllm.paging.fragmentation import FirstFit
    from nanovllm.paging.occupancy import occupancy

    trace = heavy_tailed(seed=3, count=200, rate=30.0, longest=400)
    return 100 * occupancy(FirstFit(8192), trace, 256).utilisation


def times_as_many() -> float:
    from nanovllm.batching.traces import heavy_tailed
    from nanovllm.paging.fragmentation import Blocks, FirstFit
    from nanovllm.paging.occupancy import occupancy

    trace, memories = heavy_tailed(seed=3, count=200, rate=30.0, longest=400), (Blocks, FirstFit)
    blocks, pieces = (occupancy(memory(8192), trace, 256).peak_running for memory in memories)
    return blocks / pieces


def empty_in_blocks() -> float:
    from nanovllm.batching.traces import heavy_tailed
    from nanovllm.paging.fragmentation import Blocks
    from nanovllm.paging.occupancy import occupancy

    trace = heavy_tailed(seed=3, count=200, rate=30.0, longest=400)
    return 100 * (1 - occupancy(Blocks(8192), trace, 256).utilisation)


def hits_of_equal_prompts() -> float:
    from nanovllm.batching.plan import Chunk, Plan
    from nanovllm.batching.request import Request
    from nanovllm.generation.params import SamplingParams
    from nanovllm.generation.sequence import Sequence
    from nanovllm.paging.manager import BlockManager

    manager = BlockManager(160, 16)
    for pair in range(7):
        two = []
        for number in (2 * pair, 2 * pair + 1):
            sequence = Sequence(list(range(96)), SamplingParams(), max_model_len=128, seed=0)
            sequence.request_id = number
            request = Request(number, sequence, 0.0, 97)
            two.append((request, manager.admit(request)))
        for request, found in two:
            manager.commit(Plan((Chunk(request, found, 96 - found, 96),)))
            request.num_computed_tokens = 96
        for request, _ in two:
            manager.release(request)
    return 100 * manager.prefix_stats.hit_rate


QUESTIONS = [
    Question(
        key="a",
        text="A request of 9 tokens in blocks of 4: how many of its slots stay empty?",
        unit="slots",
        tasks=(3,),
        answer=empty_slots,
    ),
    Question(
        key="b",
        text="A prompt of 64 tokens comes again, in blocks of 16: how many of them are computed?",
        unit="tokens",
        tasks=(7,),
        answer=computed_again,
    ),
    Question(
        key="c",
        text="Three samples share a prompt of 6 tokens in blocks of 4, and each writes three more: "
        "how many blocks are copied?",
        unit="blocks",
        tasks=(5,),
        answer=copies,
    ),
    Question(
        key="d",
        text="200 requests in 8,192 places, 256 reserved for each answer (prompts have 48 tokens "
        "on average, answers 25, a few 200): how many percent of what it reserves does first fit "
        "use?",
        unit="percent",
        tasks=(1,),
        answer=used_by_first_fit,
    ),
    Question(
        key="e",
        text="The same requests and places: how many times as many of them run at once in blocks "
        "of 16 as by first fit?",
        unit="times",
        tasks=(1,),
        answer=times_as_many,
    ),
    Question(
        key="f",
        text="The same in blocks of 16: how many percent of the reserved places hold no token?",
        unit="percent",
        tasks=(1,),
        answer=empty_in_blocks,
    ),
    Question(
        key="g",
        text="Fourteen equal prompts of 96 tokens, two at a time, in blocks of 16: how many "
        "percent of the tokens are found in the prefix cache?",
        unit="percent",
        tasks=(7,),
        answer=hits_of_equal_prompts,
    ),
]

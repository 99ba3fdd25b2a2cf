"""Task 5: the token tree."""

from zlib import crc32

import pytest
import torch

from grader import expect
from nanovllm.model.attend import RecomputeAttend
from nanovllm.model.cache import ContiguousCache, forward_cached
from nanovllm.model.config import ModelConfig
from nanovllm.model.loader import dummy_model
from nanovllm.speculative.tree import ROOT, TokenTree, best_tree, verify_tree

SIZES = (50, 32, 2, 4, 2, 8, 48, 96)  # V, E, L, H, G, D, the width of the MLP, positions
CONFIG = ModelConfig("qwen3", *SIZES, qk_norm=True)
WINDOWED = ModelConfig("mistral", *SIZES, windows=(4, None))
PROMPT = [5, 9, 13, 7, 21, 30, 8]


def random_model(config, seed):
    """A small model of random weights, on one thread: for so few numbers more only wait."""
    torch.set_num_threads(1)
    return dummy_model(config, seed=seed)


def path_of(tree, node):
    """The nodes from the root to this one."""
    path = []
    while node != ROOT:
        path.insert(0, node)
        node = tree.parents[node]
    return path


def random_tree(rng, count, vocab=50):
    parents = [int(rng.integers(-1, i)) for i in range(count)]
    return TokenTree(tuple(rng.integers(3, vocab, size=count).tolist()), tuple(parents))


def greedy_text(model, tokens, count):
    """The likeliest tokens behind a text, computed afresh, and the narrowest lead of one."""
    text, lead = list(tokens), 1.0
    for _ in range(count):
        ids = torch.tensor(text)
        hidden = model(ids, torch.arange(len(ids)), RecomputeAttend(model.config))
        top = model.logits(hidden[-1:])[0].topk(2)
        text.append(int(top.indices[0]))
        lead = min(lead, float(top.values[0] - top.values[1]))
    return text[len(tokens) :], lead


def filled(model, tokens, capacity=90):
    """A cache with K and V of all tokens but the last."""
    cache = ContiguousCache(model.config, capacity)
    if len(tokens) > 1:
        forward_cached(model, cache, torch.tensor(tokens[:-1]))
    return cache


@pytest.mark.check(task=5, points=1, title="A node sees the text, its ancestors, and itself")
def test_mask(rng):
    tree = TokenTree((5, 6, 7, 8, 9), (ROOT, ROOT, 0, 2, 1))
    expect(
        tree.mask(2).int().tolist(),
        [
            [1, 1, 1, 0, 0, 0, 0, 0],
            [1, 1, 1, 1, 0, 0, 0, 0],
            [1, 1, 1, 0, 1, 0, 0, 0],
            [1, 1, 1, 1, 0, 1, 0, 0],
            [1, 1, 1, 1, 0, 1, 1, 0],
            [1, 1, 1, 0, 1, 0, 0, 1],
        ],
        call="TokenTree((5, 6, 7, 8, 9), (ROOT, ROOT, 0, 2, 1)).mask(2), as 0 and 1",
        cause="two stored places, the known token, five nodes; no node sees a sibling, or what "
        "lies behind itself",
    )
    expect(TokenTree((), ()).mask(3).tolist(), [[True] * 4], call="the mask of an empty tree")
    for stored in (0, 5):
        tree = random_tree(rng, 12)
        wanted = torch.zeros(13, stored + 13, dtype=torch.bool)
        wanted[:, : stored + 1] = True
        for node in range(12):
            for other in path_of(tree, node):
                wanted[node + 1, stored + 1 + other] = True
        expect(tree.mask(stored), wanted, call=f"mask({stored})", given={"parents": tree.parents})


@pytest.mark.check(task=5, points=1, title="Where each would stand in the text")
def test_positions(rng):
    tree = TokenTree((5, 6, 7, 8, 9), (ROOT, ROOT, 0, 2, 1))
    expect(
        [tree.positions(9).tolist(), TokenTree((), ()).positions(0).tolist()],
        [[9, 10, 10, 11, 12, 11], [0]],
        call="positions(9) of a tree with parents (ROOT, ROOT, 0, 2, 1), positions(0) of an empty "
        "one",
        cause="siblings are two answers to the same question: they stand at the same place",
    )
    tree = random_tree(rng, 20)
    expect(
        tree.positions(4).tolist(),
        [4, *(4 + len(path_of(tree, node)) for node in range(20))],
        call="positions(4)",
        given={"parents": tree.parents},
    )


@pytest.mark.check(task=5, points=2, title="The walk follows the target's tokens")
def test_walk(rng):
    cases = [
        ((5, 6, 7), (ROOT, ROOT, 1), [6, 0, 7, 9], ([1, 2], [6, 7, 9])),
        ((5, 6, 7), (ROOT, ROOT, 1), [9, 5, 6, 7], ([], [9])),
        ((5, 6, 5), (ROOT, 0, 1), [5, 6, 5, 8], ([0, 1, 2], [5, 6, 5, 8])),
        ((5, 6, 7, 6), (ROOT, ROOT, 0, 0), [5, 6, 1, 2, 4], ([0, 3], [5, 6, 4])),
        ((7, 7, 8), (ROOT, ROOT, 1), [7, 3, 8, 9], ([0], [7, 3])),
        ((7, 8, 8), (ROOT, ROOT, 0), [8, 9, 8, 8], ([1], [8, 8])),
        ((), (), [4], ([], [4])),
    ]
    for tokens, parents, likeliest, want in cases:
        nodes, found = TokenTree(tokens, parents).walk(likeliest)
        expect(
            (list(nodes), list(found)),
            want,
            call=f"TokenTree({tokens}, {parents}).walk({likeliest}): the nodes, and the tokens",
            cause="likeliest[0] is behind the known token, likeliest[i + 1] behind node i; of "
            "equal siblings the first stands; the last token is the target's own",
        )
    for _ in range(30):
        tree = random_tree(rng, 14, vocab=6)
        likeliest = rng.integers(3, 6, size=15).tolist()
        path, tokens = [], [likeliest[0]]
        while True:
            behind = [i for i in range(14) if tree.parents[i] == (path[-1] if path else ROOT)
                      and tree.token_ids[i] == tokens[-1]]  # fmt: skip
            if not behind:
                break
            path.append(behind[0])
            tokens.append(likeliest[behind[0] + 1])
        nodes, found = tree.walk(likeliest)
        expect(
            (list(nodes), list(found)),
            (path, tokens),
            call="walk: the nodes that stand, and the tokens",
            given={"token_ids": tree.token_ids, "parents": tree.parents, "likeliest": likeliest},
        )


def verified(model, tokens, tree):
    """What verify_tree gives behind these tokens, the cache, and one that read the text alone."""
    cache, calls = filled(model, tokens), []
    hook = model.register_forward_pre_hook(lambda _, given: calls.append(len(given[0])))
    found = [int(token) for token in verify_tree(model, cache, tokens[-1], tree)]
    hook.remove()
    return found, cache, filled(model, [*tokens, *found]), calls


@pytest.mark.check(task=5, points=2, title="One forward verifies the tree, and keeps what stands")
def test_verify():
    for config in (CONFIG, WINDOWED):
        model = random_model(config, 4)
        right, _ = greedy_text(model, PROMPT, 7)
        wrong = [(token + 1) % 50 for token in right]
        trees = {
            "none": ((), (), 0),
            "all wrong": (wrong[:3], (ROOT, 0, ROOT), 0),
            "a chain of 4, all right": (right[:4], (ROOT, 0, 1, 2), 4),
            "right ones behind wrong siblings": (
                [wrong[0], right[0], wrong[1], right[1], right[2], wrong[2]],
                (ROOT, ROOT, 1, 1, 3, 3), 3),
            "deep, wide at the end": (
                [right[0], right[1], right[2], wrong[3], wrong[0], right[3]],
                (ROOT, 0, 1, 2, 2, 2), 4),
            "deeper than the window, behind wrong siblings": (
                [*wrong[:2], *right[:6]], (ROOT, ROOT, ROOT, 2, 3, 4, 5, 6), 6),
            "equal siblings, each with a child": (
                [right[0], right[0], right[1], wrong[1]], (ROOT, ROOT, 1, 0), 1),
        }  # fmt: skip
        for says, (tokens, parents, stood) in trees.items():
            tree = TokenTree(tuple(tokens), tuple(parents))
            found, cache, alone, calls = verified(model, PROMPT, tree)
            given = {"tree": says, "token_ids": tree.token_ids, "parents": tree.parents,
                     "windows of the layers": config.windows}  # fmt: skip
            expect(
                found,
                right[: stood + 1],
                call=f"the tokens of verify_tree behind {len(PROMPT)} tokens",
                given=given,
                cause="each node must see what it would see if its path were the text",
            )
            expect(
                [cache.length, calls],
                [len(PROMPT) + stood, [1 + len(tokens)]],
                call="tokens stored in the cache afterwards, and tokens of each forward",
                given=given,
                cause="stored are the known token and the nodes that stand; one forward has all",
            )
            stored = slice(0, cache.length)
            expect(
                [cache.k[:, stored], cache.v[:, stored]],
                [alone.k[:, stored], alone.v[:, stored]],
                call="K and V in the cache [L, S, G, D]",
                given=given,
                cause="in the order of the text, as if it had been read alone",
                atol=2e-4,
            )


def random_logits(name, vocab):
    generator = torch.Generator().manual_seed(crc32(repr(name).encode()))
    return torch.randn(vocab, generator=generator) * 1.5


def draft_logits(seed, vocab=7):
    """A draft without a model: other logits behind each path. Notes what it is asked."""
    asked = []

    def behind(path):
        asked.append(tuple(path))
        return random_logits((seed, tuple(path)), vocab)

    behind.asked = asked
    return behind


def all_paths(behind, width, depth):
    """Every path there may be, with its probability, likeliest first."""
    found, open_ = [], [((), 0.0)]
    for path, score in open_:
        if len(path) < depth:
            logprobs = behind(path).log_softmax(dim=-1).tolist()
            for token in sorted(range(len(logprobs)), key=lambda t: -logprobs[t])[:width]:
                found.append((score + logprobs[token], (*path, token)))
                open_.append(((*path, token), score + logprobs[token]))
    return [path for _, path in sorted(found, reverse=True)]


@pytest.mark.check(task=5, points=2, title="The likeliest paths of the draft, and no others")
def test_best_tree(seed):
    for number, (nodes, width, depth) in enumerate(
        [(1, 3, 8), (10, 3, 4), (30, 2, 5), (8, 1, 8), (9, 3, 2), (40, 2, 3), (12, 7, 3)]
    ):
        behind = draft_logits(seed % 1000 + number)
        tree = best_tree(behind, nodes, width, depth)
        asked = list(behind.asked)
        found = [tuple(tree.token_ids[i] for i in path_of(tree, node))
                 for node in range(len(tree.token_ids))]  # fmt: skip
        wanted = all_paths(behind, width, depth)[:nodes]
        call = f"best_tree(behind, nodes={nodes}, width={width}, depth={depth}) over 7 tokens"
        expect(
            found,
            wanted,
            call=f"the paths of the nodes of {call}",
            cause="the products of the probabilities along a path say which nodes, and their order",
        )
        may = {(), *(path for path in found if len(path) < depth)}
        expect(
            [len(asked) - len(set(asked)), sorted(set(asked) - may)],
            [0, []],
            call=f"how often {call} asked again, and paths asked for that were not needed",
            cause="each question costs a row of the draft's forward",
        )
    expect(
        len(best_tree(draft_logits(1, vocab=2), 5, width=3, depth=1).token_ids),
        2,
        call="nodes of a tree of depth 1 over a vocabulary of 2, of 5 wanted",
    )


@pytest.mark.check(task=5, points=2, title="A text by trees is the greedy text", stress=True)
def test_text(rng, seed):
    for number, config in enumerate((CONFIG, WINDOWED)):
        model = random_model(config, 5 + number)
        lead = 0.0
        while lead < 1e-3:  # where two tokens are equally likely, either would be right
            prompt = rng.integers(3, 50, size=int(rng.integers(1, 9))).tolist()
            wanted, lead = greedy_text(model, prompt, 30)
        for nodes, width in ((6, 3), (4, 1), (0, 1)):
            text, cache, steps = [*prompt], filled(model, prompt), 0
            while len(text) < len(prompt) + 24:
                rest = wanted[len(text) - len(prompt) :]

                def behind(path, step=steps, rest=tuple(rest)):
                    logits = random_logits((seed, step, tuple(path)), 50)
                    if tuple(path) == rest[: len(path)]:
                        logits[rest[len(path)]] += 3.0  # often right, not always
                    return logits

                tree = best_tree(behind, nodes, width, 5) if nodes else TokenTree((), ())
                paths = {tuple(tree.token_ids[i] for i in path_of(tree, node))
                         for node in range(len(tree.token_ids))}  # fmt: skip
                stood = max((n for n in range(6) if tuple(rest[:n]) in paths), default=0)
                new = verify_tree(model, cache, text[-1], tree)
                text, steps = [*text, *(int(token) for token in new)], steps + 1
                expect(
                    [text[-len(new) :], cache.length],
                    [rest[: stood + 1], len(text) - 1],
                    call=f"the tokens of tree {steps}, and those stored in the cache then",
                    given={"text before": text[: -len(new)], "token_ids": tree.token_ids,
                           "parents": tree.parents, "windows of the layers": config.windows},
                    cause="a tree changes how many tokens a forward gives, never which",
                )  # fmt: skip

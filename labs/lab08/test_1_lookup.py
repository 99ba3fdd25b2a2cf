"""Task 1: prompt lookup."""

import gc
import sys
import weakref

import pytest

from grader import expect
from grader.checks import runaway
from nanovllm.batching.request import Request
from nanovllm.speculative.lookup import PromptLookup
from nanovllm.speculative.proposer import Ask, Guesses, NgramThenDraft


class Text:
    """A sequence that is only its tokens."""

    request_id = index = 0

    def __init__(self, prompt, output=()):
        self.prompt_token_ids, self.output_token_ids = tuple(prompt), list(output)

    @property
    def num_tokens(self):
        return len(self.prompt_token_ids) + len(self.output_token_ids)


def request_of(prompt, output=(), number=0):
    return Request(number, Text(prompt, output), 0.0, 9_999)


def said(guesses):
    """Guesses as plain data; how many tokens matched where there are any."""
    token_ids = [int(token) for token in guesses.token_ids]
    return [token_ids, guesses.match if token_ids else 0]


def guessed(lookup, request, most=4):
    """What one request gets, asked alone."""
    [guesses] = lookup.propose([Ask(request, most)])
    return said(guesses)


def naive(tokens, shortest, longest, most):
    """By trying every place: the longest n-gram first, of its places the earliest."""
    for n in range(longest, shortest - 1, -1):
        for end in range(n, len(tokens)):
            if tokens[end - n : end] == tokens[len(tokens) - n :]:
                return [tokens[end : end + most], n]
    return [[], 0]


@pytest.mark.check(task=1, points=3, title="What followed the newest token before is guessed")
def test_what_followed():
    lookup = PromptLookup(1, 1)
    requests = [
        request_of([5, 6, 7, 8, 9], [5], 0),
        request_of([5, 6, 7, 8, 9], [4], 1),
        request_of([3, 4], [5, 6, 3], 2),
        request_of([6], number=3),
    ]
    found = lookup.propose([Ask(request, 2) for request in requests])
    expect(
        [[int(token) for token in guesses.token_ids] for guesses in found],
        [[6, 7], [], [4, 5], []],
        call="PromptLookup(1, 1).propose for 2 guesses behind 5 6 7 8 9 | 5, behind "
        "5 6 7 8 9 | 4, behind 3 4 | 5 6 3, and behind a prompt of one token",
        cause="prompt and output are one text; what is new there has no guesses",
    )
    expect(
        [[type(guesses.token_ids).__name__, guesses.match] for guesses in found],
        [["tuple", 1], ["tuple", 0], ["tuple", 1], ["tuple", 0]],
        call="the type of token_ids, and match, of these",
        cause="a Guesses holds a tuple; match is how many of the newest tokens were found again",
    )
    expect(
        [found[0].source, found[2].source, found[0].probs],
        ["ngram", "ngram", None],
        call="source of those that found something, and probs",
        cause="the source is 'ngram'; each guess was certain, so there are no probabilities",
    )
    seen = [len(lookup.propose([Ask(requests[0], most)])[0].token_ids) for most in (1, 3, 5, 9)]
    expect(
        seen,
        [1, 3, 5, 5],
        call="how many guesses there are behind 5 6 7 8 9 | 5 when 1, 3, 5, 9 are asked for",
        cause="`most` is the limit; there are no tokens behind the newest one",
    )
    expect(lookup.propose([]), [], call="propose for nobody")


@pytest.mark.check(task=1, points=2, title="The longest n-gram goes first")
def test_longest():
    text = [9, 1, 2, 3, 4, 8, 2, 3, 5, 7, 3, 6, 1, 2, 3]
    seen = [
        guessed(PromptLookup(shortest, longest), request_of(text), 1)
        for shortest, longest in ((1, 3), (1, 2), (1, 1), (3, 3), (2, 9), (4, 6))
    ]
    expect(
        seen,
        [[[4], 3], [[4], 2], [[4], 1], [[4], 3], [[4], 3], [[], 0]],
        call="[one guess, match] behind 9 1 2 3 4 8 2 3 5 7 3 6 1 2 3 for (shortest, longest) of "
        "(1, 3), (1, 2), (1, 1), (3, 3), (2, 9), (4, 6)",
        cause="match is the length of the longest n-gram found, from shortest to longest",
    )
    text = [3, 7, 7, 2, 3, 8, 8, 1, 2, 3, 9, 9, 4, 1, 2, 3]
    seen = [
        guessed(PromptLookup(shortest, longest), request_of(text), 2)
        for shortest, longest in ((1, 3), (1, 2), (1, 1), (2, 5))
    ]
    expect(
        seen,
        [[[9, 9], 3], [[8, 8], 2], [[7, 7], 1], [[9, 9], 3]],
        call="[two guesses, match] behind 3 7 7 2 3 8 8 1 2 3 9 9 4 1 2 3 for (shortest, longest) "
        "of (1, 3), (1, 2), (1, 1), (2, 5)",
        cause="a longer match is the better sign, though a shorter one stands earlier",
    )
    default = guessed(PromptLookup(), request_of([5, 2, 3, 4, 6, 9, 2, 3, 4, 7, 5, 2, 3, 4]), 1)
    expect(
        [default, guessed(PromptLookup(), request_of([8, 1, 8]), 1)],
        [[[6], 3], [[1], 1]],
        call="[one guess, match] of PromptLookup() behind 5 2 3 4 6 9 2 3 4 7 5 2 3 4 (four match "
        "at its beginning), and behind 8 1 8",
        cause="without arguments, n-grams have 1 to 3 tokens",
    )
    asked = []

    class Draft:
        def propose(self, asks):
            asked.append([ask.request.number for ask in asks])
            return [Guesses((0,), "draft") for _ in asks]

        def forget(self, request):
            pass

    both = NgramThenDraft(PromptLookup(1, 3), Draft(), sure=2)
    texts = ([4, 5, 6, 4, 5], [4, 5, 6, 5], [4, 5, 6])
    asks = [Ask(request_of(text, number=number), 1) for number, text in enumerate(texts)]
    expect(
        [[guesses.source for guesses in both.propose(asks)], asked],
        [["ngram", "draft", "draft"], [[1, 2]]],
        call="who guesses, and for whom the draft is asked, in the given NgramThenDraft, where 2, "
        "1, 0 tokens match and 2 are sure",
        cause="it reads `match` of every Guesses, also where nothing was found",
    )


@pytest.mark.check(task=1, points=2, title="Of its places the earliest, and never its own")
def test_earliest():
    seen = [
        guessed(PromptLookup(2, 2), request_of([1, 2, 3, 1, 2, 4, 1, 2, 5], [1, 2]), 1),
        guessed(PromptLookup(1, 2), request_of([4, 4]), 3),
        guessed(PromptLookup(1, 3), request_of([4, 4, 4, 4]), 3),
        guessed(PromptLookup(1, 3), request_of([6, 4, 4, 4], [4, 4]), 9),
        guessed(PromptLookup(2, 3), request_of([1, 2, 1, 2], [1]), 9),
        guessed(PromptLookup(1, 3), request_of([1, 2, 3]), 9),
    ]
    expect(
        seen,
        [[[3], 2], [[4], 1], [[4], 3], [[4, 4], 3], [[2, 1], 3], [[], 0]],
        call="[guesses, match] behind 1 2 3 1 2 4 1 2 5 1 2 with 2-grams; 4 4 (up to 2); 4 4 4 4; "
        "6 4 4 4 4 4; 1 2 1 2 1 (2 to 3); 1 2 3",
        cause="places may overlap; the newest place of an n-gram is where it stands itself, and "
        "nothing follows there; guesses end with the newest token",
    )


@pytest.mark.check(task=1, points=2, title="The text goes on, and each request has its own")
def test_goes_on():
    lookup = PromptLookup(1, 2)
    one, two = request_of([1, 2, 3], number=0), request_of([1, 9, 1, 9, 9, 2], number=1)
    seen = [guessed(lookup, one, 2), guessed(lookup, two, 2)]
    one.sequence.output_token_ids.append(1)
    seen += [guessed(lookup, one, 2), guessed(lookup, one, 2)]
    one.sequence.output_token_ids += [7, 8, 3, 1]
    two.sequence.output_token_ids += [1, 9]
    seen += [[said(guesses) for guesses in lookup.propose([Ask(two, 2), Ask(one, 2)])]]
    one.sequence.output_token_ids.append(7)
    seen += [guessed(lookup, one, 3)]
    expect(
        seen,
        [
            [[], 0],
            [[], 0],
            [[2, 3], 1],
            [[2, 3], 1],
            [[[1, 9], 2], [[7, 8], 2]],
            [[8, 3, 1], 2],
        ],
        call="[guesses, match] of one (1 2 3) and two (1 9 1 9 9 2); of one again with 1 behind, "
        "twice; of two with 1 9 behind and one with 7 8 3 1 behind, in one call; of one with 7 "
        "behind; n-grams of 1 and 2",
        cause="several tokens may have come, or none; the texts of two requests are two texts",
    )
    prompt = list(range(10, 30))
    late = request_of(prompt, [*range(40, 60), 12, 13], 5)
    early = guessed(PromptLookup(1, 3), late, 3)
    late.sequence.output_token_ids += [45, 46]
    expect(
        [early, guessed(PromptLookup(1, 3), late, 3)],
        [[[14, 15, 16], 2], [[47, 48, 49], 2]],
        call="[guesses, match] of a request that is first asked about in the middle of its output: "
        "its newest tokens stand in its prompt, then in its output",
        cause="everything before counts, whenever the first question comes",
    )


@pytest.mark.check(task=1, points=1, title="Who is forgotten may come again; nothing else stays")
def test_forget():
    lookup = PromptLookup(1, 2)
    one, two = request_of([3, 5, 3], number=0), request_of([3, 6, 3], number=1)
    lookup.forget(one)
    lookup.propose([Ask(one, 2), Ask(two, 2)])
    lookup.forget(one)
    lookup.forget(one)
    one.sequence.output_token_ids += [5]
    expect(
        [guessed(lookup, one, 2), guessed(lookup, two, 2), guessed(lookup, one, 2)],
        [[[3, 5], 2], [[6, 3], 1], [[3, 5], 2]],
        call="[guesses, match] of one (3 5 3 | 5), which was forgotten (before the first question, "
        "and twice after it); of two (3 6 3), which was not; of one again",
        cause="a request comes back after a preemption, with all its tokens",
    )
    lookup.forget(two)
    seen = weakref.ref(two)
    del two
    gc.collect()
    expect(
        seen() is None,
        True,
        call="whether a request that was forgotten can go out of memory",
        cause="what a proposer remembers of a request ends with forget",
    )


class TooMuch(BaseException):
    """More work than can be right."""


class Work:
    """Counts Python's steps (bytecodes) of a call; see Token and Tokens.

    Not those of the grader's own clock, which interrupts it: more often on a busy machine.
    """

    def __init__(self, most=10**9):
        self.steps, self.most = 0, most

    def __enter__(self):
        self.before, self.home = sys.gettrace(), sys._getframe(1)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error):
        sys.settrace(self.before)
        return error[0] is TooMuch

    def _trace(self, frame, event, argument):
        if event == "call" and not self._counts(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.steps += 1
            if self.steps > self.most:
                raise TooMuch
        return self._trace

    def _counts(self, frame):
        """What counted code calls, but not the clock, nor what the clock calls."""
        inside = frame.f_back is self.home or frame.f_back.f_trace is not None
        return inside and frame.f_code.co_filename != runaway.__file__


class Token(int):
    """A token id that is compared and hashed in Python, so that it is counted wherever that is."""

    def __eq__(self, other):
        return int.__eq__(self, other)

    def __hash__(self):
        return int.__hash__(self)


class Tokens(list):
    """Token ids that are read one by one, so that a look at a thousand counts as a thousand."""

    reads = 0  # of all

    def __getitem__(self, at):
        if not isinstance(at, slice):
            Tokens.reads += 1
            return list.__getitem__(self, at)
        return [self[i] for i in range(*at.indices(len(self)))]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __add__(self, other):
        return [*self, *other]

    def __radd__(self, other):
        return [*other, *self]


TEXTS = {
    "a text that repeats three tokens": lambda rng, count: [11 + i % 3 for i in range(count)],
    "one token again and again": lambda rng, count: [7] * count,
    "tokens at random": lambda rng, count: rng.integers(0, 40, size=count).tolist(),
    "no token twice": lambda rng, count: list(range(count)),
}


@pytest.mark.check(task=1, points=2, title="A token costs as much in a long text as in a short one")
def test_work(rng):
    for name, text in TEXTS.items():
        first, further, reads = [], [], []
        for length in (50, 800):
            token_ids = [Token(t) for t in text(rng, length + 30)]
            request = request_of(())
            request.sequence.prompt_token_ids = Tokens(token_ids[: length - 10])
            request.sequence.output_token_ids = Tokens(token_ids[length - 10 : length])
            lookup = PromptLookup(1, 3)
            with Work(10 * 16 * first[0] if first else 10**9) as work:
                lookup.propose([Ask(request, 4)])
            first.append(work.steps)
            Tokens.reads = 0
            with Work(10 * further[0] if further else 10**9) as work:
                for token in token_ids[length:]:
                    request.sequence.output_token_ids.append(token)
                    lookup.propose([Ask(request, 4)])
            further.append(work.steps)
            reads.append(Tokens.reads)
        expect.that(
            reads[1] < 2 * max(reads[0], 30),
            "30 further tokens behind 800 cost less than twice the reads of 30 behind 50",
            observed=reads[1],
            call=f"propose after each of 30 tokens ({name}): how often a token of the request is "
            "read",
            given={"reads behind 50 tokens": reads[0]},
            cause="what was read once need not be read again",
        )
        expect.that(
            further[1] < 2 * further[0],
            "30 further tokens behind 800 cost less than twice the work of 30 behind 50",
            observed=f"{min(further[1] / further[0], 9):.0f} times",
            call=f"propose after each of 30 tokens ({name}): the work, in steps of Python",
            given={"steps behind 50 tokens": further[0]},
            cause="what is looked for should be found without a search",
        )
        expect.that(
            first[1] < 32 * first[0],
            "a text of 800 tokens costs less than 32 times one of 50 when it is first seen",
            observed=f"{min(first[1] / first[0], 99):.0f} times",
            call=f"the first propose for a request ({name}): the work, in steps of Python",
        )


def history(rng, length):
    """Settings, then random calls, as data."""
    shortest = int(rng.integers(1, 3))
    calls = []
    for _ in range(length):
        who, kind = int(rng.integers(2)), rng.random()
        if kind < 0.5:
            tokens = rng.integers(0, 3, size=int(rng.integers(1, 5))).tolist()
            calls.append(("tokens", who, tokens))
        elif kind < 0.9:
            calls.append(("ask", who, int(rng.integers(1, 6))))
        else:
            calls.append(("forget", who, None))
    return (shortest, shortest + int(rng.integers(4))), calls


def replay(settings, calls):
    """The calls up to the first whose guesses differ from a search of every place, found and
    expected; None if there is none."""
    lookup, story = PromptLookup(*settings), [f"PromptLookup{settings}"]
    requests = [request_of([who], number=who) for who in range(2)]
    for kind, who, what in calls:
        story.append(f"{kind} {who}" + ("" if what is None else f" {what}"))
        if kind == "tokens":
            requests[who].sequence.output_token_ids += what
        elif kind == "forget":
            lookup.forget(requests[who])
        else:
            sequence = requests[who].sequence
            tokens = [*sequence.prompt_token_ids, *sequence.output_token_ids]
            found, wanted = guessed(lookup, requests[who], what), naive(tokens, *settings, what)
            if found != wanted:
                return [*story, f"the text is {tokens}"], found, wanted
    return None


def shrunk(settings, calls):
    """A shortest failing history that leaving out single calls leads to."""
    i = 0
    while i < len(calls):
        fewer = calls[:i] + calls[i + 1 :]
        calls, i = (fewer, 0) if replay(settings, fewer) else (calls, i + 1)
    return calls


@pytest.mark.check(
    task=1, points=2, title="Random texts beside a search of every place", stress=True
)
def test_random(rng):
    for _ in range(60):
        settings, calls = history(rng, 20)
        differs = replay(settings, calls)
        if differs:
            differs = replay(settings, shrunk(settings, calls))
        story, found, wanted = differs or ([], None, None)
        expect(
            found,
            wanted,
            call="[guesses, match] at the end of the shortest history found in which they differ "
            "from a search of every place",
            given={"history": "\n" + "\n".join(story)},
        )

"""Prompt lookup: what followed the newest tokens where they stood for the first time."""

### BEGIN SOLUTION
from collections.abc import Sequence

from nanovllm.batching.request import Request
from nanovllm.speculative.proposer import Ask, Guesses


class NgramIndex:
    """Where each n-gram of a growing list of tokens ended for the first time.

    A token costs at most `longest - shortest + 1` entries when it comes, and as many look-ups when
    guesses are wanted, however long the list is.
    """

    def __init__(self, shortest: int, longest: int) -> None:
        self.shortest, self.longest = shortest, longest
        self.token_ids: list[int] = []
        self._end: dict[tuple[int, ...], int] = {}

    def extend(self, token_ids: Sequence[int]) -> None:
        """Add tokens. An n-gram is noted when a token follows it: the newest ones find no self."""
        for token_id in token_ids:
            end = len(self.token_ids)
            for n in range(self.shortest, min(self.longest, end) + 1):
                self._end.setdefault(tuple(self.token_ids[end - n :]), end)
            self.token_ids.append(token_id)

    def find(self) -> tuple[int, int]:
        """How many of the newest tokens were there before, and where they ended; (0, 0) if none."""
        for n in range(min(self.longest, len(self.token_ids)), self.shortest - 1, -1):
            end = self._end.get(tuple(self.token_ids[-n:]))
            if end is not None:
                return n, end
        return 0, 0


class PromptLookup:
    """The longest n-gram first, and of its places the earliest (as transformers and vLLM do).

    Source: Saxena, "Prompt Lookup Decoding", 2023.
    """

    def __init__(self, shortest: int = 1, longest: int = 3) -> None:
        self.shortest, self.longest = shortest, longest
        self._index: dict[Request, NgramIndex] = {}

    def propose(self, asks: Sequence[Ask]) -> list[Guesses]:
        """What followed, up to `most` tokens and not beyond the newest one."""
        found = []
        for ask in asks:
            index = self._index.get(ask.request)
            if index is None:
                index = self._index[ask.request] = NgramIndex(self.shortest, self.longest)
            index.extend(ask.request.token_ids(len(index.token_ids), ask.request.num_tokens))
            match, end = index.find()
            token_ids = tuple(index.token_ids[end : end + ask.most]) if match else ()
            found.append(Guesses(token_ids, "ngram", match))
        return found

    def forget(self, request: Request) -> None:
        """Drop its index."""
        self._index.pop(request, None)


### END SOLUTION

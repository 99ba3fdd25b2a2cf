"""The prefix cache: what of a request's tokens is in blocks already, and what it leaves behind."""

from collections.abc import Callable
from dataclasses import dataclass

from nanovllm.batching.request import Request
from nanovllm.paging.block_pool import BlockPool
from nanovllm.paging.block_table import BlockTable
from nanovllm.paging.prefix_index import BlockHash, CachedBlock, PrefixIndex, Tokens, block_hash

SaltOf = Callable[[Request], str]


def no_salt(request: Request) -> str:
    """Everybody shares with everybody."""
    return ""


@dataclass
class PrefixStats:
    """In tokens, as vLLM counts. A request that comes back after preemption is not counted."""

    queries: int = 0  # tokens of the requests that were admitted
    hits: int = 0  # of these, tokens that were in the cache

    @property
    def hit_rate(self) -> float:
        """Hits a query; 0 before the first."""
        return self.hits / self.queries if self.queries else 0.0


class PrefixCache:
    """Looks up and registers the full blocks of requests. Each block is hashed once a request."""

    def __init__(
        self, block_size: int, salt_of: SaltOf = no_salt, hash_of: BlockHash = block_hash
    ) -> None:
        self.block_size = block_size
        self.salt_of = salt_of
        self.hash_of = hash_of
        self.index = PrefixIndex()
        self.stats = PrefixStats()
        self._contents: dict[Request, list[tuple[bytes, Tokens]]] = {}

    def contents(self, request: Request, index: int) -> tuple[bytes, Tokens]:
        """Key and tokens of a request's full block; remembered until `forget`."""
        known = self._contents.setdefault(request, [])
        while len(known) <= index:
            start = len(known) * self.block_size
            tokens = tuple(request.token_ids(start, start + self.block_size))
            parent = known[-1][0] if known else b""
            known.append((self.hash_of(parent, tokens, self.salt_of(request)), tokens))
        return known[index]

    def forget(self, request: Request) -> None:
        """The request has ended: its keys are not needed any more; its blocks stay findable."""
        self._contents.pop(request, None)

    def lookup(self, request: Request) -> list[CachedBlock]:
        """The cached blocks that the request's tokens begin with, from the first to a miss.

        Never all of its tokens: the last must be computed, for nothing else gives the logits of
        the next. A hit is in whole blocks, so it covers n - 1 tokens at most, rounded down.
        """
        ### BEGIN SOLUTION
        found: list[CachedBlock] = []
        salt = self.salt_of(request)
        for index in range((request.num_tokens - 1) // self.block_size):
            key, tokens = self.contents(request, index)
            entry = self.index.find(key, found[-1] if found else None, tokens, salt)
            if entry is None:
                break
            found.append(entry)
        return found
        ### END SOLUTION

    def register(self, pool: BlockPool, request: Request, table: BlockTable) -> None:
        """Make those blocks of the table findable that are full of stored tokens by now.

        Prompt or generated, it makes no difference. Where another block is known for the same
        contents, the table takes that one and frees its own: so who holds a cached block also
        holds those before it. After a collision this call registers nothing more: the blocks
        behind would lack a parent.
        """
        ### BEGIN SOLUTION
        salt = self.salt_of(request)
        while (len(table.cached) + 1) * self.block_size <= table.num_tokens:
            index = len(table.cached)
            key, tokens = self.contents(request, index)
            parent = table.cached[-1] if table.cached else None
            mine = table.block_ids[index]
            entry = self.index.insert(key, parent, tokens, salt, mine)
            if entry is None:
                return
            table.cached.append(entry)
            if entry.block_id != mine:
                pool.share(entry.block_id, table)
                table.block_ids[index] = entry.block_id
                pool.free([mine], table)
        ### END SOLUTION

    def count(self, request: Request, num_hits: int) -> None:
        """Count an admission for the hit rate: all its tokens asked for, `num_hits` found.

        Not one that was preempted before: what it finds it has left there itself.
        """
        if request.num_preemptions == 0:
            self.stats.queries += request.num_tokens
            self.stats.hits += num_hits

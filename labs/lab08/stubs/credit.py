"""Whether guesses pay on this machine, by the clock: the seconds that they have saved (given)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from nanovllm.batching.plan import Plan
from nanovllm.speculative.guessed_plan import GuessedChunk

UNSEEN = 1.05  # guesses also cost what is done for them outside of the time that is taken
LONGEST = (
    4.0  # a step with guesses counts as no longer, in steps without: the rest is the machine's
)


@dataclass
class Account:
    """Of steps in which about as many requests get a token."""

    alone: float = 0.0  # seconds a request, of a step without guesses; 0.0 before one was timed
    since: int = 0  # steps since one without guesses was timed
    recheck: int = 0  # such steps until the next is to be timed
    saved: dict[str, float] = field(default_factory=dict)  # by source: seconds, less what it cost
    stopped: set[str] = field(default_factory=set)  # sources

    def earn(self, source: str, seconds: float, limit: float) -> None:
        """Add to what a source has saved; it may guess again when it owes nothing."""
        self.saved[source] = min(self.saved[source] + seconds, limit)
        if self.saved[source] >= 0:
            self.stopped.discard(source)


class Credit:
    """Nobody guesses once guesses have cost more time than they saved, by `trust` steps.

    They may begin anew when the debt is paid: with `allowance` of all time that goes by. After
    `recheck` steps some pass without guesses, to compare with; as long as these take what they
    took, it is twice as many next time, up to `longest`. What holds for few requests need not hold
    for many: there is an account for 1, for 2, up to 4, up to 8, and so on. Of several `sources` of
    guesses each has debts of its own, and its part of the trust; a step counts as the last one's of
    those that guessed in it.
    """

    def __init__(
        self,
        allowance: float = 0.01,
        trust: float = 16.0,
        recheck: int = 64,
        longest: int = 1024,
        sources: Sequence[str] = ("",),
    ) -> None:
        self.allowance, self.trust, self.recheck = allowance, trust / len(sources), recheck
        self.longest, self.sources = longest, sources
        self._accounts: dict[int, Account] = {}

    def _account(self, requests: int) -> Account:
        which = _bits(requests)
        if which not in self._accounts:
            self._accounts[which] = Account(saved=dict.fromkeys(self.sources, 0.0))
        return self._accounts[which]

    def allows(self, requests: int) -> bool:
        """Whether a step in which so many requests get a token may have guesses."""
        account = self._account(requests)
        return account.alone > 0.0 and not self.stopped(requests)

    def due(self, requests: int) -> bool:
        """Whether steps without guesses are to be timed now."""
        account = self._account(requests)
        return account.alone == 0.0 or account.since >= account.recheck

    def stopped(self, requests: int) -> bool:
        """Whether guesses have cost more than they saved, and the debt is not paid yet."""
        return len(self.silent(requests)) == len(self.sources)

    def silent(self, requests: int) -> set[str]:
        """The sources of which this is so."""
        return self._account(requests).stopped

    def slept(self, requests: int, steps: int) -> None:
        """Steps went by for which nobody was asked: each took as long as those before it."""
        account = self._account(requests)
        account.since += steps
        for source in self.sources:
            paid = self.allowance * account.alone * requests * steps
            account.earn(source, paid, self.trust * account.alone * requests)

    def plain(self, requests: int, seconds: float) -> None:
        """A step without guesses, like those before it, took so long."""
        if seconds <= 0.0:
            return  # a clock that stands still
        account, each = self._account(requests), seconds / requests
        known = account.alone or each
        account.alone = known + 0.5 * (min(each, 2 * known) - known)
        as_before = abs(account.alone - known) < 0.1 * known and account.recheck
        account.recheck = min(2 * account.recheck, self.longest) if as_before else self.recheck
        account.since = 0

    def tried(self, plan: Plan, seconds: float, drafting: float, token: float) -> None:
        """The step of a plan that might have guesses took so long, of it `drafting` to guess.

        token: what one more token costs in a step. Where prompts were read too, guesses cost that,
        and the drafting; elsewhere, what the step took longer than without.
        """
        complete = [chunk for chunk in plan.chunks if chunk.completes]
        if not complete:
            return
        account, requests = self._account(len(complete)), len(complete)
        guesses = sum(len(c.guesses.token_ids) for c in complete if isinstance(c, GuessedChunk))
        tokens = sum(chunk.request.num_tokens - chunk.total for chunk in complete) + guesses
        alone = account.alone * requests
        if plan.num_tokens - guesses > requests:
            seconds = alone + drafting + token * guesses
        else:
            seconds = min(seconds, LONGEST * alone)
        limit, cost = self.trust * alone, seconds * (UNSEEN if guesses else 1.0)
        found = {c.guesses.source for c in complete if isinstance(c, GuessedChunk)}
        own = [source for source in self.sources if source in found][-1:] or self.sources[:1]
        for source in self.sources:
            saved = account.alone * tokens - cost if source in own else 0.0
            account.earn(source, saved + self.allowance * seconds, limit)
            if account.saved[source] < -limit:
                account.stopped.add(source)
        account.since += 1


def alike(one: int, other: int) -> bool:
    """Whether so many requests and so many others have one account."""
    return _bits(one) == _bits(other)


def _bits(requests: int) -> int:
    return (requests - 1).bit_length()

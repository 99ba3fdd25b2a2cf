"""Whether guesses pay on this machine, by the clock: the seconds that they have saved (given)."""

from dataclasses import dataclass

from nanovllm.batching.plan import Plan
from nanovllm.speculative.guessed_plan import GuessedChunk


@dataclass
class Account:
    """Of steps in which about as many requests get a token."""

    alone: float = 0.0  # seconds a request, of a step without guesses
    plain_steps: int = 0  # without guesses, so far
    since_plain: int = 0  # steps with guesses since the last one without
    saved: float = 0.0  # seconds that guesses saved, less what they cost
    stopped: bool = False


class Credit:
    """Nobody guesses once guesses have cost more time than they saved, by `trust` steps.

    They may begin anew when the debt is paid: with `allowance` of all time that goes by. Every
    `recheck` steps one does without guesses, to compare with. What holds for few requests need not
    hold for many: there is an account for 1, for 2, up to 4, up to 8, and so on.
    """

    def __init__(self, allowance: float = 0.01, trust: float = 16.0, recheck: int = 32) -> None:
        self.allowance, self.trust, self.recheck = allowance, trust, recheck
        self._accounts: dict[int, Account] = {}

    def _account(self, requests: int) -> Account:
        which = (requests - 1).bit_length()
        if which not in self._accounts:
            self._accounts[which] = Account()
        return self._accounts[which]

    def allows(self, requests: int) -> bool:
        """Whether a step in which so many requests get a token may have guesses."""
        account = self._account(requests)
        known = account.plain_steps > 1 and account.since_plain < self.recheck
        return known and not account.stopped

    def stopped(self, requests: int) -> bool:
        """Whether guesses have cost more than they saved, and the debt is not paid yet."""
        return self._account(requests).stopped

    def slept(self, requests: int) -> None:
        """A step went by for which nobody was asked or timed: as long as those before it."""
        account = self._account(requests)
        account.saved += self.allowance * account.alone * requests
        account.stopped = account.stopped and account.saved < 0

    def plain(self, plan: Plan, seconds: float) -> None:
        """The step of a plan for which nobody was asked took so long."""
        requests = len(plan.chunks)
        if plan.num_tokens > requests or not all(chunk.completes for chunk in plan.chunks):
            return  # prompts were read
        account, each = self._account(requests), seconds / requests
        known = account.alone or each
        account.alone = known + 0.2 * (min(each, 2 * known) - known)
        account.plain_steps += 1
        account.since_plain = 0
        account.saved += self.allowance * seconds
        account.stopped = account.stopped and account.saved < 0

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
        if plan.num_tokens - guesses > requests:
            seconds = account.alone * requests + drafting + token * guesses
        limit = self.trust * account.alone * requests
        saved = account.saved + account.alone * tokens - (1 - self.allowance) * seconds
        account.saved, account.stopped = min(saved, limit), saved < -limit
        account.since_plain += 1

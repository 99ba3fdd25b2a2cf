"""Who may guess on this machine, by the clock: whoever brings the most tokens a second (given)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from nanovllm.batching.plan import Plan
from nanovllm.speculative.guessed_plan import GuessedChunk

Arm = frozenset[str]  # sources of guesses that are asked
NOBODY: Arm = frozenset()
WINDOW = 32  # steps that are judged together
MEMORY = 0.7  # what the windows before the newest weigh
COLD = 4  # of a trial, those before it do not count: caches are cold, and costs not yet learnt
LONGEST = 4.0, 12.0  # a cold step, and another, count as no longer, in steps without guesses
OUTSIDE = 1.03  # guesses also cost what is done for them outside of the time that is taken
CHARGE = 1.0  # what a trial costs at least: also where nobody guessed, somebody was asked
MARGIN = 0.03  # of a token's time, that guesses have to save: the clock is not exact


@dataclass
class Window:
    """Some steps with one arm; all of it in steps without guesses, and tokens of one request."""

    trial: bool = False
    steps: int = 0
    time: float = 0.0
    tokens: float = 0.0
    lost: float = 0.0  # time over what as many tokens take with the best other arm
    spent: float = 0.0  # time, that of cold steps too
    doubted: bool = False  # it is judged when steps beside it have been timed

    def scale(self, factor: float) -> None:
        """A step without guesses took so much less time than was thought."""
        self.time, self.spent = factor * self.time, factor * self.spent
        self.lost += self.spent - self.spent / factor

    def add(self, steps: int, time: float, tokens: float, best: float) -> None:
        """Steps that took so long; `best`: what a token takes with the best other arm."""
        if self.trial and self.steps < COLD <= self.steps + steps:
            self.time = self.tokens = 0.0
        self.steps += steps
        self.lost += time - best * tokens
        self.spent += time
        self.time += time
        self.tokens += tokens


@dataclass
class Account:
    """Of steps in which about as many requests get a token; times as in Window."""

    budget: float  # time that trials may yet lose
    alone: float = 0.0  # seconds a request, of a step without guesses; 0.0 before one was timed
    since: int = 0  # steps since one without guesses was timed
    recheck: int = 0  # such steps until the next is to be timed
    untimed: int = 0  # how often that was to begin since then
    arm: Arm = NOBODY
    window: Window = field(default_factory=Window)
    worth: dict[Arm, float] = field(default_factory=lambda: {NOBODY: 1.0})  # time a token
    seen: dict[Arm, tuple[float, float]] = field(default_factory=dict)  # its time, and tokens
    price: dict[Arm, float] = field(default_factory=dict)  # what the last trial has lost

    @property
    def best(self) -> Arm:
        """Of those that are known, the arm with the least time a token.

        Who begins to guess has to save MARGIN; who guesses goes on as long as it saves anything.
        """
        margin = MARGIN if self.window.trial or not self.arm else 0.0
        return min(self.worth, key=lambda arm: self.worth[arm] - margin * (arm == NOBODY))


class Credit:
    """Of all sets of `sources` that brings the most tokens a second, or nobody, guesses.

    Each set is tried for a few steps, if need be again and again: trials may lose `trust` steps'
    time at first, and `allowance` of all time that goes by. A trial ends when it has lost its part
    of the trust; who guesses makes way, whatever was known, after losing all of it. After `recheck`
    steps some pass without guesses, to compare with; as long as these take what they took, it is
    twice as many next time, up to `longest`. What holds for few requests need not hold for many:
    there is an account for 1, for 2, up to 4, up to 8, and so on.

    Others use the machine, too, and for a second all of it may be half as fast. So trials, and
    whoever seems not to pay, are judged by steps without guesses that are timed right behind.
    """

    def __init__(
        self,
        allowance: float = 0.01,
        trust: float = 16.0,
        recheck: int = 64,
        longest: int = 1024,
        sources: Sequence[str] = ("",),
    ) -> None:
        sizes = range(1, len(sources) + 1)
        self.arms = [Arm(some) for size in sizes for some in combinations(sources, size)]
        self.allowance, self.trust, self.part = allowance, trust, trust / len(self.arms)
        self.recheck, self.longest, self.sources = recheck, longest, frozenset(sources)
        self._accounts: dict[int, Account] = {}

    def _account(self, requests: int) -> Account:
        return self._accounts.setdefault(_bits(requests), Account(self.trust))

    def allows(self, requests: int) -> bool:
        """Whether a step in which so many requests get a token may have guesses."""
        return not self.stopped(requests)

    def due(self, requests: int) -> bool:
        """Whether steps without guesses are to be timed now."""
        account = self._account(requests)
        late = account.since >= account.recheck
        return account.alone == 0.0 or late or account.window.doubted

    def untimed(self, requests: int) -> int:
        """Steps without guesses are to be timed, once more; how often since any were."""
        account = self._account(requests)
        account.untimed += 1
        return account.untimed

    def stopped(self, requests: int) -> bool:
        """Whether nobody may guess."""
        return not self._account(requests).arm

    def silent(self, requests: int) -> Arm:
        """The sources that may not guess."""
        return self.sources - self._account(requests).arm

    def slept(self, requests: int, steps: int, of_arm: bool = True) -> None:
        """Steps went by for which nobody was asked: each took as long as those before it.

        of_arm: since who may guess wanted to rest, not since they were to be timed.
        """
        account = self._account(requests)
        account.since += steps
        if of_arm:
            self._went_by(account, steps, float(steps), float(steps))

    def plain(self, requests: int, seconds: float, exact: bool = True) -> None:
        """A step without guesses, like those before it, took so long.

        exact: by so many steps that whoever is in doubt can be judged by them.
        """
        if seconds <= 0.0:
            return  # a clock that stands still
        account, each = self._account(requests), seconds / requests
        first, known = account.alone == 0.0, account.alone or each
        each = min(each, 2 * known)
        account.alone = known + 0.5 * (each - known)
        as_before = abs(account.alone - known) < 0.1 * known and account.recheck
        account.recheck = min(2 * account.recheck, self.longest) if as_before else self.recheck
        account.since = account.untimed = 0
        if first:
            self._choose(account)
        elif account.window.doubted:
            if exact:
                account.window.scale(min(known / each, 2.0))
            self._judge(account)

    def tried(self, plan: Plan, seconds: float, drafting: float, token: float) -> None:
        """The step of a plan that might have guesses took so long, of it `drafting` to guess.

        token: what one more token costs in a step. Where prompts were read too, guesses cost that,
        and the drafting; elsewhere, what the step took longer than without.
        """
        complete = [chunk for chunk in plan.chunks if chunk.completes]
        if not complete:
            return
        account, requests = self._account(len(complete)), len(complete)
        account.since += 1
        if account.alone == 0.0:
            return
        guesses = sum(len(c.guesses.token_ids) for c in complete if isinstance(c, GuessedChunk))
        tokens = sum(chunk.request.num_tokens - chunk.total for chunk in complete) + guesses
        alone = account.alone * requests
        if plan.num_tokens - guesses > requests:
            seconds = alone + drafting + token * guesses
        time = min(seconds / alone, LONGEST[account.window.steps >= COLD])
        time *= OUTSIDE if guesses else 1.0
        self._went_by(account, 1, time, tokens / requests)

    def _went_by(self, account: Account, steps: int, time: float, tokens: float) -> None:
        """Steps of an account's arm; where it is judged, who guesses next is chosen."""
        account.budget = min(account.budget + self.allowance * time, self.trust)
        window, seen = account.window, account.window.doubted
        others = [worth for arm, worth in account.worth.items() if arm != account.arm]
        window.add(steps, time, tokens, min(others, default=1.0))
        doubtful = window.trial or window.time > window.tokens
        window.doubted = not seen and doubtful and account.arm != NOBODY and self._ends(window)
        if not window.doubted:
            self._judge(account)

    def _ends(self, window: Window) -> bool:
        return window.steps >= WINDOW or self._given_up(window)

    def _given_up(self, window: Window) -> bool:
        return window.lost > (self.part if window.trial else self.trust)

    def _judge(self, account: Account) -> None:
        """Where a window is over: what it was worth, and who guesses next."""
        window, arm = account.window, account.arm
        if not self._ends(window):
            window.doubted = False
            return
        given_up = self._given_up(window)
        if arm:
            memory = MEMORY if window.trial or not given_up else 0.0  # it is no longer what it was
            old_time, old_tokens = account.seen.get(arm, (0.0, 0.0))
            seen = memory * old_time + window.time, memory * old_tokens + window.tokens
            account.seen[arm], account.worth[arm] = seen, seen[0] / seen[1]
        if window.trial:
            account.budget -= max(window.lost, CHARGE)
            account.price.pop(arm, None)
            account.price[arm] = min(window.lost, self.trust)  # the last one in the queue
        self._choose(account)

    def _choose(self, account: Account) -> None:
        """The best arm that is known; or a trial of the one whose last is longest ago, if what that
        may lose is there."""
        best, untried = account.best, [arm for arm in self.arms if arm not in account.price]
        [arm, *_] = *(arm for arm in (*untried, *account.price) if arm != best), best
        tries = arm != best and account.budget >= max(account.price.get(arm, 0.0), self.part)
        account.arm, account.window = arm if tries else best, Window(trial=tries)


def alike(one: int, other: int) -> bool:
    """Whether so many requests and so many others have one account."""
    return _bits(one) == _bits(other)


def _bits(requests: int) -> int:
    return (requests - 1).bit_length()

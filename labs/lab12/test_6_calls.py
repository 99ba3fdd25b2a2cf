"""Task 6: calls between processes."""

import random

import pytest

from grader import expect
from nanovllm.generation.latency import ManualClock
from nanovllm.resilience.breaker import Breaker
from nanovllm.resilience.calls import HEADER, Caller, Deadline, Reply
from nanovllm.resilience.errors import BreakerOpenError, DeadlinePassedError, UnavailableError
from nanovllm.resilience.retry_budget import RetryBudget


@pytest.mark.check(task=6, points=1, title="A deadline on its way")
def test_deadline(seed):
    cases = ((100.0, 105.0, "5000"), (0.0, 0.0019, "1"), (7.25, 8.0, "750"), (3.0, 3.2345, "234"))
    for now, moment, text in cases:
        expect(Deadline(moment).headers(now), {HEADER: text},
               call=f"Deadline({moment}).headers({now})",
               cause="the milliseconds that are left, rounded down")  # fmt: skip
        back = Deadline.of_headers(50.0, {HEADER: text, "x-other": "1"})
        expect(back.moment, 50.0 + int(text) / 1000, call=f"of_headers(50.0, {text!r}).moment",
               cause="another machine has another clock; what is left counts from now")  # fmt: skip
    for left in (0.0, -1.0, 0.0009):
        expect.raises(DeadlinePassedError, lambda left=left: Deadline(10.0 + left).headers(10.0),
                      call=f"headers with {left} s left")  # fmt: skip
    for text in ("", "soon", "-5", "+5", " 5", "1_000", "1.5", "1e3", "²", "9" * 400, "9" * 5000):
        expect(Deadline.of_headers(0.0, {HEADER: text}), None, call=f"of_headers(0, {text!r:.20})",
               cause="no whole number of milliseconds, no deadline")  # fmt: skip
    expect(Deadline.of_headers(0.0, {}), None, call="of_headers(0, {})")
    expect(Deadline.of_headers(4.0, {HEADER: "0"}).moment, 4.0, call="of_headers(4, '0').moment")


@pytest.mark.check(task=6, points=2, title="One budget for all retries")
def test_budget(seed):
    budget = RetryBudget(share=0.2, a_second=0.0, seconds=10.0)
    paid = []
    for _ in range(4):
        budget.call(0.0)
    paid.append(budget.retry(0.0))
    budget.call(0.0)
    paid += [budget.retry(0.0), budget.retry(0.0)]
    expect(paid, [False, True, False], call="retry after 4 calls, after 5, and again, share 0.2",
           cause="a whole retry must be there, and it is spent")  # fmt: skip
    budget = RetryBudget()
    expect(sum(budget.retry(0.0) for _ in range(300)), 100, call="retries paid without any call",
           cause="10 a second, for 10 seconds")  # fmt: skip
    expect([budget.retry(9.9), budget.retry(10.0)], [False, True], call="retry at 9.9 s, at 10 s",
           cause="what was spent lives for 10 seconds")  # fmt: skip
    budget = RetryBudget(share=0.0, a_second=1.0, seconds=3.0)
    expect(sum(budget.retry(0.0) for _ in range(9)), 3, call="retries paid, 1 a second for 3 s")
    for number in range(5):
        draw, now = random.Random(seed + number), 0.0
        budget, calls, retries, found, wanted = RetryBudget(0.5, 0.25, 4.0), [], [], [], []
        for _ in range(80):
            now += draw.choice([0.0, 0.25, 0.5])
            if draw.random() < 0.4:
                budget.call(now)
                calls.append(now)
                continue
            live = [[t for t in times if t > now - 4.0] for times in (calls, retries)]
            wanted.append(1.0 + 0.5 * len(live[0]) - len(live[1]) >= 1.0)
            if wanted[-1]:
                retries.append(now)
            found.append(budget.retry(now))
        expect(found, wanted, call="RetryBudget(0.5, 0.25, seconds=4): a random history of retries")


def states(breaker, *moments):
    return [breaker.state(now).value for now in moments]


@pytest.mark.check(task=6, points=1, title="A breaker opens")
def test_opens(seed):
    breaker = Breaker(failures=3, rest=5.0)
    for now, status in enumerate((500, None, 200, 503, None)):
        breaker.record(float(now), status)
    expect(states(breaker, 4.0), ["closed"], call="two failures after a success, of 3",
           cause="failures in a row count")  # fmt: skip
    breaker.record(5.0, 600)
    expect(states(breaker, 5.0, 9.9, 10.0, 99.0), ["open", "open", "half-open", "half-open"],
           call="state after the third, and later")  # fmt: skip
    expect(breaker.allow(9.9), False, call="allow while it is open")


@pytest.mark.check(task=6, points=1, title="Whose fault it is")
def test_400(seed):
    breaker = Breaker(failures=2, rest=5.0)
    for now in range(9):
        breaker.record(float(now), (400, 404, 429, 499)[now % 4])
    expect(states(breaker, 9.0), ["closed"], call="state after nine answers of 400 to 499",
           cause="the sender's fault is no failure of the server")  # fmt: skip
    for status in (500, 422, 500):
        breaker.record(9.0, status)
    expect(states(breaker, 9.0), ["closed"], call="state after 500, 422, 500, of 2 failures",
           cause="a 422 is an answer: the server is well")  # fmt: skip


@pytest.mark.check(task=6, points=1, title="Half-open: one goes ahead")
def test_half_open(seed):
    def opened():
        breaker = Breaker(failures=1, rest=5.0)
        breaker.record(0.0, None)
        return breaker

    breaker = opened()
    expect([breaker.allow(5.0) for _ in range(4)], [True, False, False, False],
           call="allow, four times, when half-open", cause="one call, not all of them")  # fmt: skip
    breaker.record(6.0, 200)
    expect([states(breaker, 6.0), breaker.allow(6.0), breaker.allow(6.0)],
           [["closed"], True, True], call="state, allow, allow after its success")  # fmt: skip
    breaker = opened()
    breaker.allow(7.0)
    breaker.record(8.0, 503)
    expect([states(breaker, 8.0, 12.9, 13.0), breaker.allow(12.9), breaker.allow(13.0)],
           [["open", "open", "half-open"], False, True], call="state and allow after its failure",
           cause="a whole rest more, from the failure on")  # fmt: skip
    breaker = Breaker(failures=3, rest=5.0)
    for now in (0.0, 0.0, 0.0, 6.0):
        breaker.allow(now)
        breaker.record(now, 500)
    expect(states(breaker, 6.0, 11.0), ["open", "half-open"],
           call="state of one with failures=3, after one failure when half-open",
           cause="half-open, a single failure is enough")  # fmt: skip
    breaker = opened()
    expect(
        [breaker.allow(now) for now in (5.0, 9.9, 10.0, 10.0)],
        [True, False, True, False],
        call="allow at 5, 9.9, 10, 10 s, where nobody says how it ended",
        cause="a call that is never heard of again must not keep it half-open for ever",
    )
    breaker = Breaker(failures=2, rest=5.0)
    for now in (0.0, 1.0):
        breaker.record(now, 500)
    breaker.allow(6.0)
    breaker.record(6.0, 200)
    breaker.record(7.0, 500)
    expect(states(breaker, 7.0), ["closed"], call="one failure of two after it has closed",
           cause="closed, it counts from 0")  # fmt: skip


@pytest.mark.check(task=6, points=1, title="Calls that left before it opened")
def test_left_before(seed):
    for status in (200, None):
        for moment in (2.0, 6.0):
            breaker = Breaker(failures=1, rest=5.0)
            breaker.record(0.0, None)
            breaker.record(moment, status)
            expect([states(breaker, 4.9, 6.0), breaker.allow(6.0), breaker.allow(6.0)],
                   [["open", "half-open"], True, False],
                   call="state at 4.9 and 6 s, allow twice, where a call that left earlier ends "
                   f"at {moment} s by {status}",
                   cause="neither while it is open, nor before the one call has left")  # fmt: skip


class Servers:
    """Servers that answer what they are told, and note what they were asked."""

    def __init__(self, answers, seconds=0.0):
        cut = ConnectionResetError("cut")
        self.answers = {name: cut if one is None else one for name, one in answers.items()}
        self.seconds, self.asked = seconds, []
        self.clock = ManualClock(100.0)

    def send(self, server, headers):
        self.asked.append((server, headers.get(HEADER)))
        self.clock.advance(self.seconds)
        answer = self.answers[server]
        if isinstance(answer, OSError):
            raise answer
        return Reply(answer, server.encode())


def call(servers, budget=None, breakers=None, left=5.0, order=None):
    caller = Caller(servers.send, servers.clock, budget, breakers)
    order = list(order or servers.answers)
    reply = caller.call(order, Deadline.after(servers.clock(), left))
    return [reply.status, reply.body.decode(), [name for name, _ in servers.asked]]


@pytest.mark.check(task=6, points=1, title="Retries with the next server")
def test_retry(seed):
    expect(call(Servers({"a": 200, "b": 200})), [200, "a", ["a"]], call="call, a answers 200")
    expect(call(Servers({"a": 503, "b": None, "c": 201})), [201, "c", ["a", "b", "c"]],
           call="call, a answers 503, b does not, c answers 201")  # fmt: skip
    expect(call(Servers({"a": TimeoutError("late"), "b": 200})), [200, "b", ["a", "b"]],
           call="call, where send raises TimeoutError for a",
           cause="every OSError is a lack of an answer")  # fmt: skip
    for status in (400, 404, 429, 499):
        expect(call(Servers({"a": status, "b": 200})), [status, "a", ["a"]],
               call=f"call, a answers {status}", cause="below 500: given back")  # fmt: skip
    expect(call(Servers({"a": 503, "b": 200}), order="aab"), [200, "b", ["a", "b"]],
           call="call of a, a, b, where a answers 503", cause="each at most once")  # fmt: skip
    servers = Servers({"a": 500, "b": None})
    expect.raises(UnavailableError, lambda: call(servers), call="call, where both fail")
    expect([name for name, _ in servers.asked], ["a", "b"], call="who was asked", cause="each once")
    expect.raises(BreakerOpenError, lambda: call(Servers({})), call="call without servers")


@pytest.mark.check(task=6, points=1, title="The deadline goes with it")
def test_carried(seed):
    servers = Servers({"a": 503, "b": 503, "c": 200}, seconds=1.5)
    call(servers, left=5.0)
    expect([left for _, left in servers.asked], ["5000", "3500", "2000"],
           call="what each server was told, where each takes 1.5 of 5 s",
           cause="what is left, not what there was")  # fmt: skip
    servers = Servers({"a": 503, "b": 200}, seconds=9.0)
    expect.raises(DeadlinePassedError, lambda: call(servers), call="call, where a takes 9 of 5 s",
                  cause="nobody is asked for what nobody waits for")  # fmt: skip
    expect(len(servers.asked), 1, call="servers asked")
    servers = Servers({"a": 200})
    expect.raises(DeadlinePassedError, lambda: call(servers, left=0.0), call="call, no time left")
    expect(len(servers.asked), 0, call="servers asked without time")


@pytest.mark.check(task=6, points=1, title="What is asked first")
def test_order(seed):
    def half_open():
        breaker = Breaker(failures=1, rest=5.0)
        breaker.record(90.0, None)
        return breaker

    servers, half = Servers({"a": 503, "b": 200}), half_open()
    expect.raises(UnavailableError, lambda: call(servers, RetryBudget(0.0, 0.0), {"b": half}),
                  call="call, a answers 503, no retry in the budget, b half-open")  # fmt: skip
    expect(half.allow(100.0), True, call="allow of b's breaker after it",
           cause="who is told True makes the call: the budget comes first")  # fmt: skip
    servers, budget = Servers({"a": 503, "b": 200}, seconds=9.0), RetryBudget(1.0, 0.0)
    expect.raises(DeadlinePassedError, lambda: call(servers, budget), call="call, a takes 9 of 5 s")
    expect(budget.retry(109.0), True, call="whether its retry is left",
           cause="no retry is paid for that is not made")  # fmt: skip
    servers, half = Servers({"a": 503, "b": 200, "c": 201}), half_open()
    half.allow(100.0)
    expect(call(servers, RetryBudget(1.0, 0.0), {"b": half}), [201, "c", ["a", "c"]],
           call="call with one retry, b half-open, with a call under way",
           cause="what was paid for b is c's")  # fmt: skip
    opened = Breaker(failures=1, rest=50.0)
    opened.record(100.0, None)
    servers = Servers({"a": 200})
    expect.raises(BreakerOpenError, lambda: call(servers, None, {"a": opened}, left=0.0),
                  call="call without time, where the only breaker is open",
                  cause="a breaker that is open comes before the deadline")  # fmt: skip


@pytest.mark.check(task=6, points=1, title="Shared over requests: budget and breakers")
def test_shared(seed):
    servers = Servers({"a": 503, "b": 200})
    caller = Caller(servers.send, servers.clock, RetryBudget(0.5, 0.0, 10.0), {"a": Breaker(99)})

    def ask(order="ab"):
        try:
            return caller.call(list(order), Deadline.after(servers.clock(), 5.0)).status
        except (UnavailableError, BreakerOpenError) as error:
            return type(error).__name__

    expect([ask() for _ in range(6)], ["UnavailableError", 200] * 3,
           call="six calls, with half a retry for each",
           cause="the budget is one for all requests")  # fmt: skip
    servers = Servers({"a": None, "b": 200})
    caller = Caller(servers.send, servers.clock, None, {"a": Breaker(failures=2, rest=5.0)})
    expect([ask() for _ in range(4)], [200] * 4, call="four calls, a does not answer")
    expect([name for name, _ in servers.asked], list("ababbb"), call="who was asked",
           cause="after two failures its breaker is open, and a is passed over")  # fmt: skip
    expect(ask("a"), "BreakerOpenError", call="call of a alone, while its breaker is open")
    servers.clock.advance(5.0)
    servers.answers["a"] = 200
    expect([ask(), ask()], [200, 200], call="two calls after the rest, a is well again")
    expect([name for name, _ in servers.asked[-2:]], ["a", "a"], call="who was asked then",
           cause="a success closes the breaker")  # fmt: skip
    servers.answers["b"] = ConnectionResetError("cut")
    found = [ask("b") for _ in range(6)]
    expect(
        found,
        ["UnavailableError"] * 5 + ["BreakerOpenError"],
        call="six calls of b, which had no breaker",
        cause="it gets a Breaker() of its own",
    )


@pytest.mark.check(task=6, points=1, title="Who is passed over costs nothing")
def test_passed_over(seed):
    open_one = Breaker(failures=1, rest=50.0)
    open_one.record(100.0, None)
    servers, budget = Servers({"a": 200, "b": 200}), RetryBudget(1.0, 0.0, 10.0)
    expect(call(servers, budget, {"a": open_one}), [200, "b", ["b"]], call="call, a's breaker open")
    expect([budget.retry(100.0), budget.retry(100.0)], [True, False],
           call="retries left after it, where a call brings one",
           cause="the first server that is asked is no retry")  # fmt: skip
    empty = RetryBudget(0.0, 0.0)
    expect(call(Servers({"a": 200, "b": 200}), empty, {"a": open_one}), [200, "b", ["b"]],
           call="the same with an empty budget")  # fmt: skip
    half = Breaker(failures=1, rest=1.0)
    half.record(90.0, None)
    servers = Servers({"a": 503, "b": 200})
    call(servers, None, {"a": half})
    expect(half.state(100.5).value, "open", call="a half-open breaker after its call failed")

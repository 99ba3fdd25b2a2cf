"""Task 5: workers and executor."""

import signal
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from grader import expect
from nanovllm.parallel.errors import ExecutorDied, ParallelError
from nanovllm.parallel.executor import Executor
from nanovllm.parallel.executor_interface import RankFacts
from nanovllm.parallel.line import LineError, make_line, ready
from nanovllm.parallel.worker import run_worker

SIGNAL = "killed by signal 9"
PATIENCE = 20.0  # seconds until a call that does not end is given up; right code needs none
LONG = 600.0  # a timeout that must not be what ends a call


class TwoPartError(Exception):
    """Its arguments are not its message: pickle cannot make it again."""

    def __init__(self, what, why):
        super().__init__(f"{what} because of {why}")


class WordyError(Exception):
    """Its message is not its argument: what pickle makes of it says more."""

    def __init__(self, what):
        super().__init__(f"there is no {what}")


class EchoShare:
    """A share without a model: it notes what is asked of it."""

    def __init__(self, rank, answering=0, num_blocks=8, checkpoint="same"):
        self.facts = RankFacts(rank, rank == answering, checkpoint, num_blocks, 100 + rank, 10)
        self.rank, self.heard, self.buffer = rank, [], torch.zeros(4)
        self.held, self.busy = threading.Event(), threading.Event()

    def reserve(self, num_blocks):
        self.heard.append(("reserve", num_blocks))

    def echo(self, *args):
        self.heard.append(args)
        return self.rank, *args

    def add(self, x, y):
        self.heard.append("add")
        return x + y + self.rank

    def mode(self):
        self.heard.append(torch.is_inference_mode_enabled())
        return self.heard[-1]

    def count_up(self):
        self.buffer += 1
        return self.buffer

    def ones(self, size):
        return torch.ones(size)

    def fail(self, error, ranks=None):
        if ranks is None or self.rank in ranks:
            raise error
        return self.rank

    def fail_foreign(self):
        class LocalError(Exception):
            pass

        raise LocalError(f"of a class that only a rank has, in {type(self).__name__}")

    def fail_apart(self):
        raise (ValueError, KeyError)[self.rank % 2]("a reason of its own")

    def fail_each(self):
        raise ValueError(f"rank {self.rank} says so")

    def hold(self):
        self.busy.set()
        self.held.wait(3 * PATIENCE)
        return "late"


class ThreadSeat:
    """A rank in a thread; `cut` ends it as a killed process ends: its line closes."""

    def __init__(self, rank, load, fault=None, patience=30.0):
        self.rank, self.stops, self.dead, self.error = rank, [], False, None
        self.line, self.there = make_line(patience)
        worker_end = self.there
        if fault is not None:
            middle, worker_end = make_line()
            threading.Thread(target=self.relay, args=(middle, fault), daemon=True).start()
        self.worker_end = worker_end
        self.thread = threading.Thread(target=self.work, args=(load,), daemon=True)
        self.thread.start()

    def work(self, load):
        try:
            run_worker(self.worker_end, load)
        except BaseException as error:  # it should raise nothing
            self.error = error
        self.worker_end.close()

    def relay(self, middle, fault):
        """Pass messages on; `fault(number, data)` says what becomes of each answer."""
        number = 0
        try:
            while True:
                for end in ready([self.there, middle]):
                    if end is self.there:
                        middle.send(self.there.receive())
                    else:
                        for data in fault(number, middle.receive()):
                            self.there.send(data)
                        number += 1
        except (LineError, OSError):
            middle.close()
            self.there.close()

    def cut(self):
        self.dead = True
        self.worker_end.cut()

    @property
    def alive(self):
        return not self.dead and self.thread.is_alive()

    def why_ended(self):
        if isinstance(self.error, NotImplementedError):
            raise self.error
        raised = self.error
        return f"run_worker raised {type(raised).__name__}: {raised}" if raised else SIGNAL

    def stop(self, grace):
        time.sleep(0.03)  # who does not wait for it goes on meanwhile
        self.stops.append(grace)
        with suppress(OSError):  # it may have left by itself
            self.cut()


def ends(action, call, cause=""):
    """What an action returns or raises; a card in place of a hang."""
    outcome = []

    def run():
        try:
            outcome.append(("returned", action()))
        except BaseException as error:
            outcome.append(("raised", error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    expect.that(
        outcome,
        f"it ends; after {PATIENCE:.0f} s it still waits",
        call=call,
        cause=cause or "whoever waits for a rank must notice its end",
    )
    kind, value = outcome[0]
    if isinstance(value, NotImplementedError):
        raise value
    return kind, value


def returns(action, call, cause=""):
    kind, value = ends(action, call, cause)
    expect.that(
        kind == "returned",
        "it returns",
        observed=value if kind == "raised" else None,
        call=call,
        cause=cause,
    )
    return value


def raises(error, action, call, cause=""):
    kind, value = ends(action, call, cause)
    expect.that(
        kind == "raised" and isinstance(value, error),
        f"it raises {error.__name__}",
        observed=f"{type(value).__name__}: {value}" if kind == "raised" else value,
        call=call,
        cause=cause,
    )
    return value


def seats_of(shares, faults=None, patience=30.0):
    faults = faults or {}
    return [ThreadSeat(s.rank, lambda s=s: s, faults.get(s.rank), patience) for s in shares]


def started(shares, faults=None, patience=30.0, **limits):
    """An executor of these shares, and its ranks."""
    seats = seats_of(shares, faults, patience)
    limits = {"timeout": LONG, "start_timeout": LONG, "grace": 0.5} | limits
    executor = returns(
        lambda: Executor(seats, **limits), f"Executor of {len(shares)} ranks that are ready"
    )
    return executor, seats


def all_gone(seats, call):
    expect(
        [bool(seat.stops) for seat in seats],
        [True] * len(seats),
        call=f"whether `stop` of each rank has returned, after {call}",
        cause="call `stop` of every handle, and wait for it: no process may be left behind",
    )


def names_rank(error, rank, call):
    expect.that(
        str(rank) in str(error),
        f"the sentence names rank {rank}",
        observed=str(error),
        call=call,
    )


@pytest.mark.check(task=5, points=1, title="A call goes to every rank, one of them answers")
def test_call():
    shares = [EchoShare(rank, answering=2) for rank in range(3)]
    executor, _ = started(shares)
    found = [
        returns(lambda: executor.call("echo"), 'call("echo"), rank 2 of 3 answers'),
        returns(lambda: executor.call("echo", "a", None), 'call("echo", "a", None)'),
        returns(lambda: executor.call("echo", {"b": [1, 2]}), 'call("echo", {"b": [1, 2]})'),
    ]
    expect(
        found,
        [(2,), (2, "a", None), (2, {"b": [1, 2]})],
        call='call("echo", ...) three times; rank 2 of 3 answers',
        cause="the result is that of the rank whose facts say `answers`",
    )
    expect(
        [share.heard[1:] for share in shares],
        [[(), ("a", None), ({"b": [1, 2]},)]] * 3,
        call="what each share was asked, after reserve",
    )
    x = torch.arange(6.0).view(2, 3).T
    sum_ = returns(lambda: executor.call("add", x, 1), 'call("add", a tensor [3, 2], 1)')
    expect(sum_, x + 3, call='call("add", x, 1) of shares that add their rank, 2, as well')
    for dtype in (torch.bfloat16, torch.int64):
        y = torch.tensor([[1, 2]], dtype=dtype)
        got = returns(lambda y=y: executor.call("add", y, y), f'call("add", x, x) in {dtype}')
        expect([got.dtype, got], [dtype, y + y + 2], call=f'call("add", x, x) in {dtype}')
    executor.close()


@pytest.mark.check(task=5, points=1, title="One message to each rank, one back")
def test_messages():
    shares = [EchoShare(rank) for rank in range(3)]
    executor, seats = started(shares)
    before = [(seat.line.sent, seat.line.received) for seat in seats]
    for number in range(4):
        returns(lambda n=number: executor.call("echo", n), 'call("echo", ...)')
    expect(
        [
            (seat.line.sent - sent, seat.line.received - received)
            for seat, (sent, received) in zip(seats, before, strict=True)
        ],
        [(4, 4)] * 3,
        call="messages (to, from) each of 3 ranks in 4 calls",
        cause="a step has one message to each rank and one answer, also from those whose result "
        "nobody wants: by it the executor knows that they have done",
    )
    executor.close()


@pytest.mark.check(task=5, points=1, title="Only the rank that answers sends its result")
def test_small_answers():
    shares = [EchoShare(rank, answering=1) for rank in range(3)]
    executor, seats = started(shares)
    before = [seat.worker_end.bytes_sent for seat in seats]
    got = returns(lambda: executor.call("ones", 50_000), 'call("ones", 50000)')
    expect(got.shape, torch.Size([50_000]), call='the shape of call("ones", 50000)')
    returns(executor.close, "close()")
    for seat in seats:
        seat.thread.join(PATIENCE)  # its counts are final then
    sent = [seat.worker_end.bytes_sent - n for seat, n in zip(seats, before, strict=True)]
    expect(
        [count < 5_000 for count in sent],
        [True, False, True],
        call="which ranks sent less than 5,000 bytes for a result of 200,000; rank 1 answers",
        cause="logits of all ranks would be sent and read for nothing",
    )


@pytest.mark.check(task=5, points=1, title="As many blocks as the poorest rank has")
def test_blocks():
    for counts in ([9, 5, 7], [5, 9, 7], [7, 9, 5]):
        shares = [EchoShare(rank, num_blocks=n) for rank, n in enumerate(counts)]
        executor, _ = started(shares)
        expect(
            [executor.num_blocks, *(share.heard for share in shares)],
            [5, *[[("reserve", 5)]] * 3],
            call=f"num_blocks, and what was asked of each share, whose ranks have {counts} blocks",
            cause="a block number means the same block on every rank, so all have the least",
        )
        executor.close()


@pytest.mark.check(task=5, points=2, title="inference_mode is a thread's own")
def test_inference_mode():
    shares = [EchoShare(rank) for rank in range(2)]
    for share in shares:
        share.reserve = lambda num_blocks, share=share: share.mode()
    executor, _ = started(shares)
    for _ in range(2):
        returns(lambda: executor.call("mode"), 'call("mode")')
    expect(
        [share.heard for share in shares],
        [[True, True, True]] * 2,
        call="torch.is_inference_mode_enabled() in `reserve` and two calls of each share",
        cause="the driver's inference_mode does not hold in a rank's thread or process",
    )
    executor.close()


@pytest.mark.check(task=5, points=1, title="A result is a copy")
def test_results_stay():
    executor, _ = started([EchoShare(0)])
    found = [returns(lambda: executor.call("count_up"), 'call("count_up")') for _ in range(3)]
    expect(
        torch.stack(found),
        torch.tensor([[1.0] * 4, [2.0] * 4, [3.0] * 4]),
        call="three results of a share that writes each into the same tensor",
        cause="the next step writes over the logits of the last one",
    )
    executor.close()


@pytest.mark.check(task=5, points=2, title="What all ranks raise is raised here, and work goes on")
def test_alike():
    shares = [EchoShare(rank) for rank in range(3)]
    executor, _ = started(shares)
    for error in (ValueError("no such block: 7"), ParallelError("does not fit")):
        got = raises(
            type(error),
            lambda e=error: executor.call("fail", e),
            f"a call that raises {error!r} on all ranks",
            "what all ranks raise alike leaves them in step",
        )
        expect(
            [type(got).__name__, str(got)],
            [type(error).__name__, str(error)],
            call=f"type and message of what a call raises that raises {error!r} on all ranks",
        )
        after = returns(lambda: executor.call("echo", 1), "the call after it")
        expect(after, (0, 1), call='call("echo", 1) after a call that raised on all ranks')
    call = "a call that raises ValueError on all ranks, each with other words"
    error = raises(ValueError, lambda: executor.call("fail_each"), call,
                   "the same kind of error on all ranks leaves them in step")  # fmt: skip
    expect.that(
        str(error) in [f"rank {rank} says so" for rank in range(3)],
        "the words of one of the ranks",
        observed=str(error),
        call=call,
    )
    expect(
        executor.failure is None, True, call="executor.failure is None, after errors of all ranks"
    )
    executor.close()


@pytest.mark.check(task=5, points=1, title="Errors that cannot travel")
def test_foreign_errors():
    executor, _ = started([EchoShare(0)])
    error = raises(
        RuntimeError,
        lambda: executor.call("fail_foreign"),
        "a call that raises a class made in a function",
        "such an error cannot be pickled; send its name and its message",
    )
    expect.that(
        "LocalError" in str(error) and "only a rank has" in str(error),
        "the RuntimeError holds the name of the class and the message",
        observed=str(error),
        call="a call that raises LocalError(...)",
    )
    holder = EchoShare(0)
    holder.fail_two = lambda: (_ for _ in ()).throw(TwoPartError("a stop", "a fault"))
    other, _ = started([holder])
    error = raises(
        RuntimeError,
        lambda: other.call("fail_two"),
        "a call that raises an error which pickles, but cannot be made again from its message",
        "an error may be pickled and yet fail to unpickle: try both where it is raised",
    )
    expect.that(
        "TwoPartError" in str(error) and "a stop because of a fault" in str(error),
        "the RuntimeError holds the name of the class and the message",
        observed=str(error),
        call="a call that raises TwoPartError('a stop', 'a fault')",
    )
    wordy = EchoShare(0)
    wordy.fail_wordy = lambda: (_ for _ in ()).throw(WordyError("room"))
    third, _ = started([wordy])
    call = "a call that raises an error whose message is another one when pickle has made it again"
    error = raises(Exception, lambda: third.call("fail_wordy"), call)
    expect.that(
        str(error).endswith("there is no room") and str(error).count("there is") == 1,
        "its message, there is no room",
        observed=f"{type(error).__name__}: {error}",
        call=call,
        cause="perhaps only the kind of the error was compared with what comes out of pickle",
    )
    wordy.lock = lambda *args: threading.Lock()
    for what, args in (
        ("a result that cannot be pickled", ()),
        ("an argument that cannot be pickled", (threading.Lock(),)),
        ("an argument that pickles, but cannot be unpickled", (TwoPartError("a stop", "a fault"),)),
    ):
        call = f"a call with {what}"
        error = raises(Exception, lambda args=args: third.call("lock", *args), call)
        expect.that(
            not isinstance(error, ExecutorDied),
            "an error of this call alone",
            observed=f"{type(error).__name__}: {error}",
            call=call,
        )
    for one in (executor, other, third):
        expect(
            returns(lambda one=one: one.call("echo", 2), "the call after it"),
            (0, 2),
            call='call("echo", 2) after such an error',
        )
        one.close()


@pytest.mark.check(task=5, points=2, title="Ranks that fail apart are out of step")
def test_apart():
    cases = [("fail", (ValueError("only here"), (1,)), 1), ("fail_apart", (), None)]
    cases.append(("fail", (ValueError("only here"), (0,)), 0))
    for method, args, rank in cases:
        executor, seats = started([EchoShare(rank) for rank in range(3)])
        call = f"call({method!r}) that raises " + (
            "other errors on other ranks" if rank is None else f"on rank {rank} of 3 alone"
        )
        error = raises(
            ExecutorDied,
            lambda e=executor, m=method, a=args: e.call(m, *a),
            call,
            "one rank has done its step and another has not: nobody knows what is in their caches",
        )
        if rank is not None:
            names_rank(error, rank, call)
        all_gone(seats, call)
        raises(ExecutorDied, lambda e=executor: e.call("echo", 1), f"a further call, after {call}")


@pytest.mark.check(task=5, points=1, title="One rank waits, the other has raised")
def test_grace():
    shares = [EchoShare(rank) for rank in range(2)]
    shares[1].hold = lambda: (_ for _ in ()).throw(ValueError("broken"))
    executor, seats = started(shares, grace=0.3)
    call = "a call in which rank 1 raises and rank 0 waits for it for ever (timeout 600, grace 0.3)"
    error = raises(
        ExecutorDied,
        lambda: executor.call("hold"),
        call,
        "after the first error, wait for the others no longer than the grace",
    )
    names_rank(error, 1, call)
    expect.that(
        "broken" in str(error), "the sentence says what was raised", observed=str(error), call=call
    )
    all_gone(seats, call)
    shares[0].held.set()

    shares = [EchoShare(rank) for rank in range(2)]
    first = threading.Event()

    def fail_first():
        time.sleep(2.2)
        first.set()
        raise ValueError("late")

    def fail_after():
        first.wait(PATIENCE)
        time.sleep(0.2)
        raise ValueError("late")

    shares[1].fail_late, shares[0].fail_late = fail_first, fail_after
    executor, _ = started(shares, grace=2.0)
    call = "a call in which rank 1 raises after 2.2 s, and rank 0 the same 0.2 s later (grace 2.0)"
    raises(
        ValueError,
        lambda: executor.call("fail_late"),
        call,
        "perhaps the grace is counted from the call on; it begins with the first error",
    )
    expect(executor.failure is None, True, call=f"executor.failure is None, after {call}")
    executor.close()


@pytest.mark.check(task=5, points=2, title="A rank that ends, ends the wait")
def test_death():
    for moment in ("while it computes", "between calls", "after its answer"):
        for victim in (0, 1):
            shares = [EchoShare(rank) for rank in range(2)]
            executor, seats = started(shares)
            action = lambda e=executor: e.call("hold")  # noqa: E731
            if moment == "while it computes":

                def kill(shares=shares, seats=seats, victim=victim):
                    shares[victim].busy.wait(PATIENCE)
                    seats[victim].cut()

                threading.Thread(target=kill, daemon=True).start()
            elif moment == "between calls":
                seats[victim].cut()
            else:
                shares[victim].hold = lambda: 1

                def kill(shares=shares, seats=seats, victim=victim):
                    shares[1 - victim].busy.wait(PATIENCE)
                    seats[victim].cut()

                threading.Thread(target=kill, daemon=True).start()
            call = f"a call where rank {victim} of 2 is killed {moment}; the other never answers"
            error = raises(ExecutorDied, action, call)
            names_rank(error, victim, call)
            expect.that(
                "signal 9" in str(error) or moment != "while it computes",
                "the sentence holds what the handle knows of its end (why_ended)",
                observed=str(error),
                call=call,
            )
            all_gone(seats, call)
            raises(ExecutorDied, lambda e=executor: e.call("echo"), f"a further call, after {call}")
            expect(
                isinstance(executor.failure, ExecutorDied),
                True,
                call=f"executor.failure is an ExecutorDied, after {call}",
            )
            for share in shares:
                share.held.set()


@pytest.mark.check(task=5, points=1, title="Its line may stay open")
def test_death_unseen():
    for moment in ("while it computes", "after its answer"):
        shares = [EchoShare(rank) for rank in range(2)]
        executor, seats = started(shares)
        if moment == "after its answer":
            shares[1].hold = lambda: 1

        def die(shares=shares, seats=seats, moment=moment):
            if moment == "after its answer":
                shares[0].busy.wait(PATIENCE)
                time.sleep(0.3)  # its answer may be read before
            else:
                shares[1].busy.wait(PATIENCE)
            seats[1].dead = True

        threading.Thread(target=die, daemon=True).start()
        call = f"a call in which rank 1 ends {moment}, but somebody else holds its line open"
        error = raises(
            ExecutorDied,
            lambda e=executor: e.call("hold"),
            call,
            "a process may end and its line stay open: ask `alive` of all handles now and then",
        )
        names_rank(error, 1, call)
        all_gone(seats, call)
        for share in shares:
            share.held.set()


@pytest.mark.check(task=5, points=2, title="A rank that says nothing, or does not read")
def test_silence():
    sentences = []
    for silent in (0, 1):
        shares = [EchoShare(rank) for rank in range(2)]
        shares[1 - silent].hold = lambda: 1
        executor, seats = started(shares, timeout=0.3)
        call = f"a call that rank {silent} of 2 does not answer, and the other does (timeout 0.3)"
        error = raises(ExecutorDied, lambda e=executor: e.call("hold"), call)
        names_rank(error, silent, call)
        sentences.append(str(error))
        all_gone(seats, call)
        shares[silent].held.set()
    expect.that(
        sentences[0] != sentences[1],
        "a sentence that says which of the ranks is silent",
        observed=sentences[0],
        call="a call that rank 0 of 2 does not answer, and one that rank 1 does not (timeout 0.3)",
    )

    stopped = threading.Event()
    executor, seats = started([EchoShare(0)], {0: deaf(stopped)}, patience=0.3)
    call = "a call with a message of 4 MB to a rank that does not read any more"
    error = raises(
        ExecutorDied,
        lambda: executor.call("add", torch.zeros(1_000_000), 1),
        call,
        "`send` raises LineTimeout where a rank was stopped: half a message is no message",
    )
    names_rank(error, 0, call)
    all_gone(seats, call)
    stopped.set()


def deaf(stopped):
    """A fault: when it has answered `reserve`, the rank reads nothing until it is stopped."""

    def fault(number, data):
        yield data
        if number == 1:
            stopped.wait(PATIENCE)

    return fault


def noticed(executor, number):
    """A call in which an answer comes once too often: who listens so long notices it already."""
    kind, value = ends(lambda: executor.call("echo", number), f'call("echo", {number})')
    expect.that(
        kind == "returned" or isinstance(value, ExecutorDied),
        "it returns, or raises ExecutorDied",
        observed=f"{type(value).__name__}: {value}",
        call=f'call("echo", {number}), in which an answer comes once too often',
    )


@pytest.mark.check(task=5, points=2, title="Answers that come twice, or to nothing")
def test_twice():
    def twice(at):
        return lambda number, data: [data, data] if number == at else [data]

    for at in (2, 3):
        executor, seats = started([EchoShare(0), EchoShare(1)], {1: twice(at), 0: twice(at)})
        for number in range(at - 2):
            returns(lambda e=executor, n=number: e.call("echo", n), 'call("echo", ...)')
        noticed(executor, at - 2)
        call = f"the call after one that was answered twice (call {at})"
        error = raises(
            ExecutorDied,
            lambda e=executor: e.call("echo", "next"),
            call,
            "number your calls, and let the answers carry the number",
        )
        all_gone(seats, call)
        expect.that(
            isinstance(error, ExecutorDied), "it raises ExecutorDied", observed=error, call=call
        )

    def stale(number, data):
        kept.append(data)
        return [kept[2], data] if number == 4 else [data]

    kept = []
    executor, seats = started([EchoShare(0), EchoShare(1)], {1: stale})
    for number in range(2):
        returns(lambda e=executor, n=number: e.call("echo", n), 'call("echo", ...)')
    noticed(executor, 2)
    call = "two calls in which rank 1 answers an older call once more"
    raises(
        ExecutorDied,
        lambda: executor.call("echo", 3),
        call,
        "perhaps what is older is thrown away; only a call that was given up is answered late",
    )
    all_gone(seats, call)

    kept = []

    def early(number, data):
        kept.append(data)
        return [] if number == 2 else [data]

    executor, seats = started([EchoShare(0), EchoShare(1)], {1: early}, timeout=0.5)
    call = "a call whose answer from rank 1 is lost (timeout 0.5)"
    error = raises(ExecutorDied, lambda: executor.call("echo", 1), call)
    names_rank(error, 1, call)
    all_gone(seats, call)


def interrupted(action, moment, call):
    """Ctrl-C while `action` runs in the main thread, some time after `moment()` has come."""
    inside = True
    main = threading.main_thread()

    def press():
        moment()
        time.sleep(0.3)  # the driver's last steps after it has sent
        signal.pthread_kill(main.ident, signal.SIGINT)

    def on_press(number, frame):
        if inside:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_press)
    thread = threading.Thread(target=press, daemon=True)
    kind, value = "returned", None
    try:
        thread.start()
        value = action()
    except BaseException as error:
        kind, value = "raised", error
    finally:
        inside = False
        thread.join()
        signal.signal(signal.SIGINT, before)
    if isinstance(value, NotImplementedError):
        raise value
    expect(
        [kind, type(value).__name__],
        ["raised", "KeyboardInterrupt"],
        call=f"the end of {call}",
        given={"what it was": str(value)},
    )


def all_busy(shares, seats):
    """A moment: all ranks have the next call, and compute."""
    before = [seat.line.sent for seat in seats]

    def wait():
        for share in shares:
            share.busy.wait(PATIENCE)
        late = time.monotonic() + PATIENCE
        while time.monotonic() < late and any(
            seat.line.sent == sent for seat, sent in zip(seats, before, strict=True)
        ):
            time.sleep(0.01)

    return wait


def held(shares, held):
    """Let the shares' `hold` wait, or go on."""
    for share in shares:
        share.busy.clear()
        (share.held.clear if held else share.held.set)()


@pytest.mark.check(task=5, points=1, title="Ctrl-C")
def test_interrupt():
    shares = [EchoShare(rank) for rank in range(2)]
    executor, seats = started(shares)
    for number in range(2):
        held(shares, True)
        before = executor.rows()
        call = 'call("hold"), interrupted by Ctrl-C while it waits'
        interrupted(lambda: executor.call("hold"), all_busy(shares, seats), call)
        expect(
            [row.last_call for row in executor.rows()],
            [row.last_call for row in before],
            call=f"last_call of each row after {call}, while the ranks still compute",
            cause="the last call that a rank has answered, not the last that it was asked",
        )
        held(shares, False)
        got = returns(
            lambda n=number: executor.call("echo", n),
            f"the call after {call}",
            "perhaps the answers to the call that was given up come late: throw them away",
        )
        expect(got, (0, number), call=f"the call after {call}")
    expect(executor.failure is None, True, call="executor.failure is None, after two Ctrl-C")
    executor.close()


@pytest.mark.check(task=5, points=1, title="What goes wrong after Ctrl-C, or before it")
def test_after_interrupt():
    again = {1: lambda number, data: [data, data] if number == 3 else [data]}
    shares = [EchoShare(rank) for rank in range(2)]
    executor, seats = started(shares, again)
    call = "a call interrupted by Ctrl-C while it waits"
    interrupted(lambda: executor.call("hold"), all_busy(shares, seats), call)
    held(shares, False)
    noticed(executor, 1)
    raises(
        ExecutorDied,
        lambda: executor.call("echo", 2),
        f"the call after one that rank 1 answered twice, after {call}",
        "perhaps all old answers are thrown away, not only those to the call that was given up",
    )
    all_gone(seats, call)

    shares = [EchoShare(rank) for rank in range(2)]
    executor, seats = started(shares)
    interrupted(lambda: executor.call("hold"), all_busy(shares, seats), call)
    dead = f"the call after {call}, while the ranks still compute; meanwhile rank 1 is killed"
    threading.Timer(0.2, seats[1].cut).start()
    error = raises(ExecutorDied, lambda: executor.call("echo", 1), dead)
    names_rank(error, 1, dead)
    all_gone(seats, dead)
    held(shares, False)

    shares = [EchoShare(rank) for rank in range(2)]
    stopped = threading.Event()
    executor, seats = started(shares, {1: deaf(stopped)}, patience=PATIENCE)
    call = "a call of 4 MB interrupted by Ctrl-C while rank 1 does not read, and rank 0 may"
    interrupted(
        lambda: executor.call("add", torch.zeros(1_000_000), 1),
        lambda: ready([seats[1].there], PATIENCE),
        call,
    )
    raises(
        ExecutorDied,
        lambda: executor.call("echo", 2),
        f"the call after {call}",
        "one rank computes the step and the other does not: they are out of step",
    )
    all_gone(seats, call)
    stopped.set()

    loaded = threading.Event()
    seats = [ThreadSeat(rank, lambda: loaded.wait(PATIENCE)) for rank in range(2)]
    call = "Executor interrupted by Ctrl-C while its ranks load"
    interrupted(lambda: Executor(seats, timeout=LONG), lambda: time.sleep(0.5), call)
    all_gone(seats, call)
    loaded.set()


def refused(error, shares, call, cause="", **limits):
    """An Executor that must not come to be."""
    seats = [
        ThreadSeat(rank, share if callable(share) else lambda s=share: s)
        for rank, share in enumerate(shares)
    ]
    limits = {"timeout": LONG, "start_timeout": LONG, "grace": 0.3} | limits
    found = raises(error, lambda: Executor(seats, **limits), call, cause)
    all_gone(seats, call)
    return found


def broken(error):
    def load():
        raise error

    return load


@pytest.mark.check(task=5, points=2, title="Ranks that cannot start")
def test_start():
    error = refused(
        ParallelError,
        [broken(ParallelError("14 heads do not divide by 4"))] * 2,
        "Executor of ranks whose load raises ParallelError on all of them",
    )
    expect(str(error), "14 heads do not divide by 4", call="the message of that error")
    lost = broken(OSError("no such file"))
    for place, shares in enumerate(([EchoShare(0), lost], [lost, EchoShare(1)])):
        call = f"Executor whose rank {1 - place} alone cannot load"
        error = refused(ExecutorDied, shares, call)
        names_rank(error, 1 - place, call)
        expect.that("no such file" in str(error), "it says why", observed=str(error), call=call)
    forever = threading.Event()
    call = "Executor whose rank 1 cannot load, says so and leaves; rank 0 waits for it for ever"
    error = refused(ExecutorDied, [lambda: forever.wait(PATIENCE), lost], call)
    names_rank(error, 1, call)
    expect.that("no such file" in str(error), "it says why", observed=str(error), call=call)
    call = "Executor whose rank 1 never is ready (start_timeout 0.3)"
    error = refused(
        ExecutorDied, [EchoShare(0), lambda: forever.wait(PATIENCE)], call, start_timeout=0.3
    )
    names_rank(error, 1, call)
    forever.set()
    shares = [EchoShare(rank) for rank in range(2)]
    for share in shares:
        share.reserve = broken_reserve
    refused(MemoryError, shares, "Executor whose `reserve` raises MemoryError on all ranks")
    for share, error in zip(shares, (KeyError, ValueError), strict=True):
        share.reserve = lambda num_blocks, error=error: (_ for _ in ()).throw(error("no room"))
    refused(ExecutorDied, shares, "Executor whose `reserve` raises other errors on other ranks",
            "one error is the caller's only if all ranks raised its kind")  # fmt: skip
    line, there = make_line()
    call = "run_worker whose `load` raises; its line stays open"
    returns(lambda: run_worker(there, lost), call, "when `load` raised, it returns")
    expect([there.sent, line.closed], [1, False], call=f"messages that it sent: {call}")


def broken_reserve(num_blocks):
    raise MemoryError(f"no room for {num_blocks} blocks")


@pytest.mark.check(task=5, points=1, title="Ranks that do not fit together")
def test_facts():
    call = "Executor of ranks of which rank 2 has read another checkpoint"
    shares = [EchoShare(0), EchoShare(1), EchoShare(2, checkpoint="other")]
    error = refused(ExecutorDied, shares, call, "compare the checkpoints of the facts")
    names_rank(error, 2, call)
    call = "Executor of ranks of which rank 1 has memory for 0 blocks"
    error = refused(ExecutorDied, [EchoShare(0), EchoShare(1, num_blocks=0)], call)
    names_rank(error, 1, call)
    refused(
        ExecutorDied,
        [EchoShare(0, answering=5), EchoShare(1, answering=5)],
        "Executor of ranks of which none answers",
    )
    refused(
        ExecutorDied,
        [EchoShare(0, answering=0), EchoShare(1, answering=1)],
        "Executor of two ranks that both answer",
    )


@pytest.mark.check(task=5, points=1, title="Close, and once is enough")
def test_close():
    shares = [EchoShare(rank) for rank in range(2)]
    executor, seats = started(shares)
    expect(executor.failure is None, True, call="executor.failure is None, while all is well")
    returns(executor.close, "close()")
    all_gone(seats, "close()")
    for seat in seats:
        seat.thread.join(PATIENCE)
    expect(
        [(seat.thread.is_alive(), seat.dead) for seat in seats],
        [(False, True)] * 2,
        call="whether run_worker still runs, after close()",
        cause="a worker returns when its line is closed",
    )
    returns(executor.close, "close() again")
    raises(ExecutorDied, lambda: executor.call("echo"), "a call after close()")
    expect(
        isinstance(executor.failure, ExecutorDied),
        True,
        call="executor.failure is an ExecutorDied, after close()",
    )
    for victim in (0, 1):
        executor, seats = started([EchoShare(rank) for rank in range(2)])
        seats[victim].cut()
        expect(
            isinstance(executor.failure, ExecutorDied),
            True,
            call=f"executor.failure is an ExecutorDied, when rank {victim} of 2 has ended between "
            "calls",
        )
        returns(executor.close, "close() of ranks of which one has ended")


@pytest.mark.check(task=5, points=1, title="Each rank in numbers")
def test_rows():
    shares = [EchoShare(rank, num_blocks=4 + rank) for rank in range(2)]
    executor, seats = started(shares)
    for number in range(3):
        returns(lambda n=number: executor.call("echo", n), 'call("echo", ...)')
    rows = returns(executor.rows, "rows()")
    expect(
        [(r.rank, r.weight_bytes, r.kv_bytes, r.messages, r.last_call) for r in rows],
        [(0, 100, 40, seats[0].line.sent, 4), (1, 101, 40, seats[1].line.sent, 4)],
        call="(rank, weight_bytes, kv_bytes, messages, last_call) of each row, after reserve and "
        "three calls; 4 blocks of 10 bytes",
        cause="every rank has num_blocks blocks, not those it has memory for",
    )
    executor.close()
    after = returns(executor.rows, "rows() after close()")
    expect(
        [replace(row, messages=0) for row in after],
        [replace(row, messages=0) for row in rows],
        call="rows() after close(), but for `messages`",
    )


@pytest.mark.check(task=5, points=1, title="A driver that dies takes its workers along")
def test_driver_gone():
    for moment in ("before it is ready", "while it waits"):
        line, there = make_line()
        share = EchoShare(0)
        loading = threading.Event()

        def load(share=share, loading=loading, moment=moment):
            if moment == "before it is ready":
                loading.wait(PATIENCE)
            return share

        def leave(line=line, loading=loading, moment=moment):
            if moment == "while it waits":
                line.receive(PATIENCE)
            line.close()
            loading.set()

        threading.Thread(target=leave, daemon=True).start()
        returns(
            lambda there=there, load=load: run_worker(there, load),
            f"run_worker whose line is closed {moment}",
            "its line is closed: nobody can be told, so it just returns",
        )


KILLED = """
import os, signal
from nanovllm.parallel.executor_interface import RankFacts


class Share:
    def __init__(self):
        self.facts = RankFacts(0, True, "same", 8, 1, 1)

    def reserve(self, num_blocks):
        pass

    def pid(self):
        return os.getpid()

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Spec:
    size = 1

    def load(self, rank):
        return Share()
"""


@pytest.mark.check(task=5, points=1, title="kill -9 of a process")
def test_process(tmp_path, monkeypatch):
    import importlib

    from nanovllm.parallel.launch import start_processes

    (tmp_path / "killed_rank.py").write_text(KILLED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ranks = start_processes(importlib.import_module("killed_rank").Spec())
    executor = Executor(ranks, timeout=LONG, start_timeout=60.0)
    expect(
        executor.call("pid"), ranks[0].process.pid, call='call("pid") of a rank that is a process'
    )
    error = raises(
        ExecutorDied, lambda: executor.call("kill"), "a call in which a rank kills itself"
    )
    names_rank(error, 0, "a call in which a rank kills itself")
    expect(
        [rank.process.poll() for rank in ranks],
        [-9],
        call="the exit code of the process, right after ExecutorDied",
        cause="stop every handle before you raise: a process that nobody waits for stays a zombie",
    )


def history(rng):
    """A random run against a simple model of what must come of it."""
    size = int(rng.integers(1, 5))
    answering = int(rng.integers(size))
    shares = [EchoShare(rank, answering, int(rng.integers(1, 9))) for rank in range(size)]
    executor, seats = started(shares, grace=0.2)
    told = []
    for number in range(int(rng.integers(2, 9))):
        kind = str(rng.choice(["echo", "echo", "echo", "alike", "kill", "apart"]))
        if kind == "apart" and size == 1:
            kind = "alike"
        told.append(kind)
        call = f"call {number} ({kind}) of {size} ranks, after {told[:-1]}"
        if kind == "echo":
            got = returns(lambda n=number: executor.call("echo", n), call)
            expect(got, (answering, number), call=call)
        elif kind == "alike":
            error = raises(KeyError, lambda n=number: executor.call("fail", KeyError(n)), call)
            expect(error.args, (number,), call=f"args of the error of {call}")
        else:
            victim = int(rng.integers(size))
            if kind == "kill":
                seats[victim].cut()
                action = lambda n=number: executor.call("echo", n)  # noqa: E731
            else:
                action = lambda v=victim: executor.call("fail", ValueError("x"), (v,))  # noqa: E731
            error = raises(ExecutorDied, action, call)
            names_rank(error, victim, call)
            break
    executor.close()
    all_gone(seats, f"a history of {told}")


@pytest.mark.check(task=5, points=1, title="Random histories", stress=True)
def test_random(rng):
    for _ in range(25):
        history(rng)

"""Hidden scenarios of lab 12: other paths than those of the visible checks."""

from grader.checks.scenarios import scenario

# task 1


@scenario(task=1)
def two_services_in_one_time(nanovllm, rng):
    """Two wires, engines under every kind of fault, actions that take long; twice, and shrunk."""
    from itertools import count

    from nanovllm.generation.params import SamplingParams
    from nanovllm.resilience.faults import FaultyEngine, draw_faults, shrink
    from nanovllm.resilience.kinds import Fault, FaultError, Kind
    from nanovllm.resilience.toy_engine import ToyEngine
    from nanovllm.resilience.virtual_time import VirtualTime, Wire

    kinds = [Kind.CRASH, Kind.LOST, Kind.NAN, Kind.HANG, Kind.SLOW, Kind.STORE_FULL]
    faults = [Fault(int(step), kinds[int(rng.integers(6))]) for step in rng.choice(12, 3, False)]
    wires = [[Fault(int(step), kind) for step, kind in zip(
        rng.choice(10, 3, False), (Kind.LOST, Kind.LATE, Kind.DOUBLED), strict=True)]
        for _ in range(2)]  # fmt: skip
    first = int(rng.integers(3, 26))

    def run(some):
        time, log = VirtualTime(), []
        there, back = (Wire(time, one, 0.125) for one in wires)
        engine = FaultyEngine(ToyEngine(max_num_seqs=2, clock=time), some, count(), time)

        def receive(number):
            engine.add_request([first, number + 3], SamplingParams(max_tokens=4), seed=number)

        def step():
            try:
                for event in engine.step():
                    name = type(event).__name__
                    back.send(lambda text: log.append([round(time(), 3), text]), name)
            except FaultError:
                log.append([round(time(), 3), "died"])

        for number in range(10):
            time.call_later(0.25 * number, lambda number=number: there.send(receive, number))
        for number in range(14):
            time.call_later(0.3 * number + 0.2, step)
        time.run()
        return log, [there.sent, back.sent, time()]

    log, sent = run(faults)
    drawn = [[f.step for f in draw_faults(int(seed), 30, 4)] for seed in rng.integers(0, 99, 5)]
    ordered = all(one == sorted(set(one)) and len(one) <= 4 for one in drawn)
    least = shrink(faults, lambda some: any(f.step == faults[1].step for f in some))
    return {"log": log, "sent": sent, "again": run(faults)[0] == log, "ordered": ordered,
            "least": [[f.step, f.kind.value] for f in least]}  # fmt: skip


@scenario(task=1)
def what_seeds_draw_and_what_is_left(nanovllm, rng):
    """Faults of many seeds, and whose generator they move; plans shrunk to 0 to 3 culprits."""
    import random

    from nanovllm.resilience.faults import draw_faults, shrink
    from nanovllm.resilience.kinds import Fault, Kind

    kinds = [list(Kind)[int(n)] for n in rng.permutation(len(Kind))[:3]]
    steps, most = int(rng.integers(5, 9)), int(rng.integers(2, 5))
    seeds = rng.integers(0, 10**9, 300).tolist()

    def drawn(state):
        random.seed(state)
        return [draw_faults(seed, steps, most, kinds) for seed in seeds], random.random()

    (plans, after), (again, _) = drawn(1), drawn(2)
    random.seed(1)
    seen = {
        "how many": sorted({len(plan) for plan in plans}),
        "steps": sorted({fault.step for plan in plans for fault in plan}),
        "kinds": sorted({fault.kind.value for plan in plans for fault in plan}),
        "mixed": any(len({fault.kind for fault in plan}) > 1 for plan in plans),
        "of the seed alone": [random.random() == after, again == plans],
    }
    story = []
    for few in rng.permutation(4).tolist():
        places = sorted(rng.choice(40, int(rng.integers(4, 9)), False).tolist())
        faults = [Fault(step, kinds[int(rng.integers(3))]) for step in places]
        culprits = {faults[int(n)] for n in rng.choice(len(faults), few, False)}
        runs = []

        def fails(some, culprits=culprits, runs=runs):
            runs.append(len(some))
            return culprits <= set(some)

        left = [[fault.step, fault.kind.value] for fault in shrink(faults, fails)]
        story.append([left, len(runs) <= len(faults) * (len(faults) + 1) // 2])
    return seen | {"story": story}


@scenario(task=1)
def two_engines_by_turns(nanovllm, rng):
    """Each kind of fault, once, in one of two engines whose steps are counted together."""
    from itertools import count

    import numpy as np

    from nanovllm.generation.latency import ManualClock
    from nanovllm.generation.params import SamplingParams
    from nanovllm.resilience.faults import FaultyEngine
    from nanovllm.resilience.kinds import Fault, FaultError, Kind
    from nanovllm.resilience.toy_engine import ToyEngine

    class Seen(ToyEngine):
        def step(self):
            self.scores = self.execute(list(self.running))
            return super().step()

    story = []
    for kind in rng.permutation(list(Kind)).tolist():
        clock, first, start = ManualClock(), int(rng.integers(2)), int(rng.integers(50))
        faults, steps, log = [Fault(start + int(rng.integers(2, 6)), kind)], count(start), []
        inner = [Seen(max_num_seqs=9, places=300, clock=clock) for _ in range(2)]
        engines = [FaultyEngine(one, faults, steps, clock) for one in inner]
        for turn in range(10):
            which = (first + turn) % 2
            params = SamplingParams(max_tokens=int(rng.integers(2, 9)), ignore_eos=True)
            inner[which].add_request([int(rng.integers(3, 27))], params, seed=turn)
            try:
                names = [type(event).__name__ for event in engines[which].step()]
                scores = inner[which].scores
                log += [names, list(scores.shape), int(np.isnan(scores).sum())]
            except FaultError:
                log.append("died")
            log.append([[len(one.output) for one in inner[which].running], clock()])
        story.append([kind.value, log, next(steps)])
    return {"story": story}


@scenario(task=1)
def a_full_calendar(nanovllm, rng):
    """Actions that take time and ask for others, in the past, too; runs that end early."""
    from nanovllm.resilience.errors import SimulationError
    from nanovllm.resilience.kinds import Fault, Kind
    from nanovllm.resilience.virtual_time import VirtualTime, Wire

    time, log = VirtualTime(), []

    def action(name, takes=0.0, later=()):
        def act():
            log.append([name, time()])
            time.advance(takes)
            for number, seconds in enumerate(later):
                time.call_later(seconds, action(f"{name}.{number}"))

        return act

    moments = [float(n) for n in rng.integers(0, 12, 20)]
    for number, moment in enumerate(moments):
        later = [float(n) for n in rng.choice([-3.0, 0.0, 0.5, 2.0], int(rng.integers(3)))]
        time.call_later(moment, action(str(number), float(rng.choice([0.0, 0.5, 2.0])), later))
    for until in sorted(moments[:4]):
        time.run(until=until)
        log.append(["until", until, time()])
    time.run()
    end = time()
    for until in (end + 0.5, end - 0.5):
        time.run(until=until)
        log.append(["until", until, time()])

    wire = Wire(time, [Fault(n, kind) for n, kind in enumerate(rng.permutation(list(Kind)))], 0.125)
    for number in range(len(Kind) + 2):
        wire.send(lambda number: log.append([number, time() - end]), number)
    time.run()

    for most in rng.integers(2, 30, 2).tolist():
        other, ran = VirtualTime(), []

        def again(other=other, ran=ran, most=most):
            ran.append(1)
            if len(ran) != most:  # it stops once, after just so many
                other.call_later(0.25, again)

        for _ in range(2):
            other.call_later(0.0, again)
            try:
                other.run(most=most)
            except SimulationError:
                ran.append("endless")
            log.append([most, len(ran), ran[-1]])
    return {"log": log, "sent": wire.sent}


# task 2


@scenario(task=2)
def a_night_of_looks(nanovllm, rng):
    """An engine that rests, works, hangs, is made anew; monitors with limits of their own."""
    from nanovllm.resilience.progress import Monitors, health
    from nanovllm.resilience.vitals import Limits, Phase, Vitals

    limits = Limits(free=0.25, age=float(rng.integers(5, 40)), patience=6.0, fragmentation=0.3)
    monitors, story, now, steps = Monitors(limits), [], 0.0, 50
    for mood in rng.permutation(["works", "rests", "new", *["hangs"] * 5] * 2).tolist():
        pause = float(rng.choice([0.5, 1.0, 1.5]))  # patience is over in one of the looks
        for look in range(16):
            now += pause
            steps = 0 if mood == "new" and not look else steps + (mood in ("works", "new"))
            bad = mood != "rests" and (look == 3 or rng.random() < 0.15)
            vitals = Vitals(
                now, float(rng.choice([0.1, 0.25, 0.6, 0.9])), int(rng.integers(9)),
                float(rng.choice([1.0, limits.age, limits.age + 0.5])), steps,
                0 if mood == "rests" else int(rng.choice([1, 4])),
                float(rng.choice([0.0, 0.3, 0.31])), bool(bad),
            )  # fmt: skip
            found = sorted((one.remedy.value, one.request_id or 0) for one in monitors.look(vitals))
            story.append([[name, number] for name, number in found])
    found = [health(phase, hung) for phase in Phase for hung in (True, False)]
    answers = [[int(one.live), int(one.ready)] for one in found]
    return {"story": story, "health": answers}


# task 3: out of memory, timeout, fragmentation


@scenario(task=3)
def out_of_memory(nanovllm, rng):
    """A store that stays full: smaller steps, nobody new, then who is least urgent is ended."""
    from nanovllm.batching.budget import AdaptiveBudget, FixedBudget
    from nanovllm.generation.latency import ManualClock
    from nanovllm.resilience.relief import (
        Brake,
        BrakedBudget,
        OpenRequest,
        alarms_of_memory,
        expendable,
    )

    time = ManualClock()
    share = float(rng.choice([0.3, 0.55, 0.6, 0.8]))
    brake = Brake(share, hold=4.0, longest=float(rng.integers(9, 15)))
    budget = BrakedBudget(AdaptiveBudget(limit=int(rng.integers(100, 900))), brake, time)
    requests = [OpenRequest(n, float(rng.integers(0, 5)), int(rng.integers(-1, 2)))
                for n in range(8)]  # fmt: skip
    story, need = [], rng.random(60) < 0.8
    need[3], need[4:9] = True, False  # over in time
    need[20:40], need[40:46] = True, False  # for longer than it helps, and then no more
    for full in need:
        time.advance(1.0)
        if full:
            for alarm in alarms_of_memory(brake, time(), requests):
                story.append(["end", alarm.request_id])
                requests = [one for one in requests if one.request_id != alarm.request_id]
            requests = requests or [OpenRequest(99, time())]
        budget.observe(0.01, 0.5)
        story.append([budget.limit, int(brake.closed(time())), int(brake.exhausted(time()))])
    pressed = Brake()
    pressed.alarm(0.0)
    sizes = [1, 2, *range(10, 500, 10), *rng.integers(500, 9000, 20).tolist()]
    limits = [BrakedBudget(FixedBudget(size), pressed, lambda: 1.0).limit for size in sizes]
    return {"story": story, "highest": budget.highest, "limits": limits, "none": expendable([])}


@scenario(task=3)
def timeouts_and_fragments(nanovllm, rng):
    """Who is overdue as time goes on; holes of a pool; who is to blame, and found in few runs."""
    from math import ceil, log2

    from nanovllm.resilience.relief import OpenRequest, fragmentation, isolate, overdue

    requests = [OpenRequest(int(n), float(rng.integers(0, 20))) for n in rng.permutation(30)]
    limits = [7.5, 7.5, *rng.integers(2, 12, 4).tolist()]
    late = [overdue(requests, float(rng.integers(0, 40)), float(limit)) for limit in limits]
    late += [overdue(requests, one.arrived + 4.0, 4.0) for one in requests[:3]]  # just so long
    pools = [set(rng.choice(100, int(n), False).tolist()) for n in rng.integers(1, 90, 6)]
    holes = [round(fragmentation(pool), 6) for pool in pools]
    batch = rng.permutation(40).tolist()
    bad = [set(rng.choice(40, int(n), False).tolist()) for n in (1, 4, 40)]
    found = [list(isolate(batch, lambda part, b=b: bool(b & set(part)))) for b in bad]
    for size, one in zip((*rng.integers(12, 40, 3).tolist(), 0), (1, 1, 0, 0), strict=True):
        batch, runs = rng.permutation(size).tolist(), []
        culprit = int(rng.integers(size)) if one else -1  # nobody

        def fails(part, culprit=culprit, runs=runs):
            runs.append(len(part))
            return culprit in part

        alone = list(isolate(batch, fails))
        most = 2 * ceil(log2(size)) + 1 if one else min(1, size)
        found.append([alone, len(runs) <= most, 0 in runs])
    return {"late": [list(one) for one in late], "holes": holes, "blame": found}


# task 4


@scenario(task=4)
def many_entries_many_engines(nanovllm, rng):
    """All kinds of requests together, in engines that are thrown away after a few steps."""
    from nanovllm.generation.events import Finished, TokenGenerated
    from nanovllm.resilience.entry import Entry
    from nanovllm.resilience.toy_engine import ToyEngine
    from nanovllm.resilience.trial import asks_of

    story = []
    for seed in rng.integers(0, 10_000, 12):
        asks = asks_of(int(seed), most=8)
        entries = {a.number: Entry(a.number, a.prompt, a.params, a.number) for a in asks}
        heard = []
        for _ in range(60):
            engine = ToyEngine(max_num_seqs=int(rng.integers(1, 5)))
            for one in entries.values():
                if not one.ended:
                    more = {"request_id": one.request_id, "output_token_ids": one.resume()}
                    engine.add_request(one.prompt_token_ids, one.params, seed=one.seed, **more)
            for _ in range(int(rng.integers(4, 20))):
                if engine.has_unfinished:
                    heard += [e for e in engine.step() if entries[e.request_id].hear(e)]
        kinds = [type(event).__name__ for event in heard]
        ends = sorted((e.request_id, e.index, e.completion.text) for e in heard
                      if isinstance(e, Finished))  # fmt: skip
        texts = {}
        for event in heard:
            if isinstance(event, TokenGenerated):
                key = f"{event.request_id}.{event.index}"
                texts[key] = texts.get(key, "") + event.text
        counts = [kinds.count(name) for name in ("Queued", "Prefilled", "TokenGenerated")]
        story.append([[list(end) for end in ends], dict(sorted(texts.items())), counts])
    return {"story": story}


@scenario(task=4)
def what_callers_hear_of_four_engines(nanovllm, rng):
    """Requests of every kind in engines that die; some begin anew, and tell too little of it."""
    from nanovllm.batching.events import Aborted, Admitted, Failed, Preempted, Queued
    from nanovllm.generation.events import Completion, Finished, Prefilled, TokenGenerated
    from nanovllm.generation.params import SamplingParams
    from nanovllm.resilience.entry import Entry

    kinds = [{}, {}, {"logprobs": 1}, {"n": 2}, {"n": 3}, {"n": 3}]
    story = []
    for number, kind in enumerate(rng.permutation(kinds).tolist()):
        entry = Entry(number, (5, 6), SamplingParams(**kind), seed=1)
        indices = range(len(entry.samples))
        truth = [rng.integers(3, 6, int(rng.integers(5, 9))).tolist() for _ in indices]
        how = rng.permutation(3).tolist()

        def end(index, number=number, how=how):
            return (
                Finished(number, index, Completion(index, (), "", "stop"), 0.0),
                Failed(number, index, OSError("x"), 0.0),
                Aborted(number, index, (), "", 0.0),
            )[how[index]]

        for rounds in (3, 1, int(rng.integers(1, 3)), 20):
            begun = list(entry.resume())
            story.append([begun, entry.running])
            events = [told(number, index, 0.0) for told in (Queued, Admitted) for index in indices]
            events.append(Prefilled(number, 2, 0.0))
            back = int(rng.integers(rounds))  # all go back to the queue after this round
            for at in range(rounds):
                for index in indices:
                    left = truth[index][at + len(begun) :]
                    text = "abc"[at % 3] * (at % 4)
                    events += [TokenGenerated(number, index, one, text, 0.0) for one in left[:1]]
                    events += [end(index)] if len(left) == 1 else []
                going = [i for i in indices if len(truth[i]) > at + 1 + len(begun)]
                if at == back:
                    events += [
                        told(number, i, 0.0) for told in (Preempted, Admitted) for i in going
                    ]
            for event in events:
                if not entry.ended:
                    story.append([int(entry.hear(event)), int(entry.running), int(entry.ended)])
            story.append([[one.token_ids, one.text] for one in entry.samples])
    return {"story": story}


@scenario(task=4)
def a_journal_and_two_owners(nanovllm, rng):
    """A journal in a file, closed and opened again between the actions."""
    import tempfile
    from pathlib import Path

    from nanovllm.resilience.errors import JournalFullError
    from nanovllm.resilience.journal import Journal, Record

    story = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        journal = Journal(path, most=7)
        names = []
        for step in range(70):
            draw = rng.random()
            if draw < 0.08:
                journal.close()
                journal = Journal(path, most=7)
            elif draw < 0.6 or not names:
                owner = ("a", "b")[int(rng.integers(2))]
                key = (None, "x", "y", "")[int(rng.integers(4))]
                name = f"n{int(rng.integers(1000))}-{step}"
                try:
                    found = journal.accept(Record(name, owner, key, "/", str(step), b"{}"))
                    names.append(name)
                    story.append([found.id, found.owner, found.digest, int(found.open)])
                except JournalFullError:
                    story.append("full")
            elif draw < 0.9:
                journal.end(names[int(rng.integers(len(names)))], 200 + step, "t", b"%d" % step)
            else:
                journal.drop(names[int(rng.integers(len(names)))])
            story.append([[one.id for one in journal.open_requests()],
                          [(journal.find(n).answer or b"").decode() for n in names
                           if journal.find(n)]])  # fmt: skip
        journal.close()
    return {"story": story}


@scenario(task=4)
def a_journal_on_a_small_disk(nanovllm, rng):
    """A journal that becomes smaller; then a disk that is full for a while."""
    import sqlite3
    import tempfile
    from pathlib import Path

    from nanovllm.resilience.errors import JournalFullError
    from nanovllm.resilience.journal import Journal, Record

    def tried(call, *args):
        try:
            call(*args)
        except JournalFullError:
            return "full"
        return "done"

    with tempfile.TemporaryDirectory() as folder:
        path, story = Path(folder) / "journal", []
        names = [f"n{n}" for n in rng.permutation(12).tolist()]
        journal = Journal(path, most=20)
        for name in names:
            journal.accept(Record(name, "a", name, "/", "d", b"{}"))
        for name in rng.permutation(names)[: int(rng.integers(6, 9))].tolist():
            journal.end(name, 200, "t", name.encode())
        journal.close()

        journal = Journal(path, most=int(rng.integers(7, 10)))  # fewer than that are open
        journal.accept(Record("new", "a", "new", "/", "d", b"{}"))
        story.append([name for name in names if journal.find(name)])
        open_now = [one.id for one in journal.open_requests()]
        disk = sqlite3.connect(path)
        for action in ("INSERT", "UPDATE"):
            disk.execute(f"CREATE TRIGGER no_{action} BEFORE {action} ON requests BEGIN "
                         "SELECT RAISE(FAIL, 'full'); END")  # fmt: skip
        disk.commit()
        one = open_now[int(rng.integers(len(open_now)))]
        said = [tried(journal.end, one, 200, "t", b"lost"),
                tried(journal.accept, Record("more", "b", None, "/", "d", b"{}"))]  # fmt: skip
        story.append([said, [one.id for one in journal.open_requests()]])
        for action in ("INSERT", "UPDATE"):
            disk.execute(f"DROP TRIGGER no_{action}")
        disk.commit()
        disk.close()
        said = [tried(journal.end, one, status, "t", b"%d" % status) for status in (201, 500)]
        story.append([said, journal.find(one).answer])
        journal.close()
    return {"story": story}


# task 5: hang or crash; model errors


def _supervised(rng, seed, plan, **limits):
    """A run under a supervisor: ends and texts, and how many engines."""
    from nanovllm.batching.events import Failed, Preempted
    from nanovllm.resilience.checker import transcripts
    from nanovllm.resilience.restarts import RestartLimit
    from nanovllm.resilience.supervisor import SupervisedEngine
    from nanovllm.resilience.trial import asks_of

    engine = SupervisedEngine(_planned(plan, limits)[0], RestartLimit(most=99))
    events = []
    for ask in asks_of(seed, most=9):
        engine.add_request(ask.prompt, ask.params, request_id=ask.number)
        if rng.random() < 0.5:
            events += engine.step()
    for _ in range(900):
        if engine.has_unfinished:
            events += engine.step()
    ends = {}
    for (number, index), one in sorted(transcripts(events).items()):
        kinds = [type(end).__name__ for end in one.ends]
        errors = [type(end.error).__name__ for end in one.ends if isinstance(end, Failed)]
        ends[f"{number}.{index}"] = [one.token_ids, one.text, kinds, errors]
    put_back = sum(isinstance(event, Preempted) for event in events)
    free = engine.store.free_tokens == engine.store.total_tokens
    return [ends, put_back, engine.restarts, int(free), int(engine.has_unfinished)]


@scenario(task=5)
def engines_that_crash(nanovllm, rng):
    """Crashes and lost steps in small and large batches, with preemption."""
    story = []
    for seed in rng.integers(0, 10_000, 10):
        plan = {step: ("crash", "lost")[int(rng.integers(2))]
                for step in rng.choice(35, 2, False).tolist()}  # fmt: skip
        story.append(_supervised(rng, int(seed), plan, max_num_seqs=int(rng.integers(1, 6)),
                                 places=int(rng.integers(50, 120))))  # fmt: skip
    return {"story": story}


@scenario(task=5)
def models_that_go_bad(nanovllm, rng):
    """NaN in whole steps, once and again; and four deaths in a row."""
    story = []
    for seed in rng.integers(0, 10_000, 5):
        at = int(rng.integers(0, 20))
        row = {at + n: ("nan", "crash")[n % 2] for n in range(4)}
        story += [_supervised(rng, int(seed), plan, max_num_seqs=4) for plan in ({at: "nan"}, row)]
    return {"story": story}


@scenario(task=5)
def a_request_that_kills(nanovllm, rng):
    """One that kills each engine at its third token, among others; aborts and late arrivals."""
    from nanovllm.batching.events import Aborted, Failed
    from nanovllm.generation.events import Finished
    from nanovllm.generation.params import SamplingParams
    from nanovllm.resilience.restarts import RestartLimit
    from nanovllm.resilience.supervisor import SupervisedEngine
    from nanovllm.resilience.toy_engine import ToyEngine

    class Killed(ToyEngine):
        def step(self):
            events = super().step()
            if any(one.prompt[0] == 13 and len(one.output) >= 3 for one in self.running):
                raise RuntimeError("killed")
            return events

    engine = SupervisedEngine(lambda: Killed(max_num_seqs=6), RestartLimit(most=99))
    params = SamplingParams(max_tokens=15, ignore_eos=True)
    firsts = [int(n) for n in rng.choice([5, 6, 7, 8, 9, 10], 4, False)]
    firsts.insert(int(rng.integers(5)), 13)
    ends = []

    def step():
        for event in engine.step():
            if isinstance(event, Finished | Failed | Aborted):
                text = event.completion.text if isinstance(event, Finished) else ""
                ends.append([event.request_id, type(event).__name__, text])

    for first in firsts[:4]:
        engine.add_request([first], params, seed=int(rng.integers(99)))
    for number in range(300):
        if number == 2:
            engine.add_request([firsts[4]], params, seed=3)
        if number == 5:
            ends.append(["abort", int(engine.abort(int(rng.integers(4))))])
        if engine.has_unfinished:
            step()
    return {"ends": sorted(ends, key=str), "restarts": engine.restarts}


@scenario(task=5)
def a_night_of_deaths(nanovllm, rng):
    """Long requests with ids in no order, many deaths: who goes where, and who fails."""
    from nanovllm.batching.events import Failed, Preempted
    from nanovllm.generation.events import Finished
    from nanovllm.generation.params import SamplingParams
    from nanovllm.resilience.restarts import RestartLimit
    from nanovllm.resilience.supervisor import SupervisedEngine

    story = []
    for _ in range(8):
        chosen = rng.choice(50, int(rng.integers(3, 9)), False).tolist()
        plan = {step: ("crash", "lost", "nan")[int(rng.integers(3))] for step in chosen}
        make, made, _ = _planned(plan, {"max_num_seqs": int(rng.integers(1, 4)), "places": 150})
        engine, ends, back = SupervisedEngine(make, RestartLimit(most=99)), [], []
        for number in rng.permutation(20)[:5].tolist():
            params = SamplingParams(max_tokens=int(rng.integers(3, 22)), ignore_eos=True)
            engine.add_request([number + 14], params, seed=0, request_id=number)
        for step in range(200):
            for event in engine.step() if engine.has_unfinished else ():
                if isinstance(event, Finished):
                    ends.append([event.request_id, event.completion.text])
                elif isinstance(event, Failed):
                    ends.append([event.request_id, type(event.error).__name__])
                elif isinstance(event, Preempted):
                    back.append([step, event.request_id])
        asked = [[one["request_id"] for one in one_engine.asked] for one_engine in made]
        story.append([asked, sorted(ends), sorted(back), engine.restarts])
    return {"story": story}


def _planned(plan, limits):
    """What makes toy engines that go by a plan, those that it made, and their clock.

    plan: by step, counted over all of them, "crash", "lost", "nan", or the token with which the
    prompts of those that are NaN begin. A request of token 13 fails at once, by another error.
    Each step tells a Stepped, and again all that has ended in this engine.
    """
    from itertools import count

    import numpy as np

    from nanovllm.batching.events import Aborted, Failed, Stepped
    from nanovllm.generation.events import Finished
    from nanovllm.generation.latency import ManualClock
    from nanovllm.resilience.toy_engine import ToyEngine

    steps, made, clock = count(), [], ManualClock()

    class Planned(ToyEngine):
        late = ()

        def step(self):
            self.what = plan.get(next(steps))
            if self.what == "crash":
                raise RuntimeError("a crash on purpose")
            bad = [one for one in self.arrived if one.prompt[0] == 13]
            self.arrived = [one for one in self.arrived if one not in bad]
            events = [Failed(one.request_id, one.index, OSError("13"), clock()) for one in bad]
            events += [*super().step(), *self.late, Stepped((), 0, 0, 0, 0, 0.0, clock())]
            self.late = [event for event in events if isinstance(event, Finished | Aborted)]
            if self.what == "lost":
                raise OSError("the events of a step are lost on purpose")
            return events

        def execute(self, batch):
            scores = super().execute(batch)
            for row, one in zip(scores, batch, strict=True):
                row[:] = np.nan if self.what in ("nan", one.prompt[0]) else row
            return scores

    def make():
        made.append(Planned(clock=clock, **limits))
        return made[-1]

    return make, made, clock


def _driven(plan, arrivals, aborts=(), most=99):
    """A supervisor under a plan: what each step tells, what aborts say; restarts and failure.

    arrivals: by turn, the first tokens and parameters of requests; aborts: by turn, ids.
    """
    from nanovllm.generation.params import SamplingParams
    from nanovllm.resilience.errors import GaveUpError
    from nanovllm.resilience.restarts import RestartLimit
    from nanovllm.resilience.supervisor import SupervisedEngine

    make, _, clock = _planned(plan, {"max_num_seqs": 6, "places": 400})
    engine = SupervisedEngine(make, RestartLimit(most=most), clock=clock)
    told, said = [], []
    for turn in range(90):
        for first, more in dict(arrivals).get(turn, ()):
            params = SamplingParams(**{"max_tokens": 12, "ignore_eos": True, **more})
            engine.add_request([first], params, seed=first)
        said += [engine.abort(number) for number in dict(aborts).get(turn, ())]
        try:
            told.append(engine.step())
        except GaveUpError:
            told.append([])
            break
    return told, [said, len(told), engine.restarts, int(engine.failure is not None)]


def _ends(told):
    """How samples ended, in this order: text, error, or whether Aborted has all that was told."""
    from nanovllm.batching.events import Aborted, Failed
    from nanovllm.generation.events import Finished, TokenGenerated

    found, heard = [], {}
    for event in (event for events in told for event in events):
        mine = heard.setdefault((getattr(event, "request_id", -1), getattr(event, "index", 0)), [])
        if isinstance(event, TokenGenerated):
            mine.append(event)
        elif isinstance(event, Finished | Failed | Aborted):
            what = type(getattr(event, "error", None)).__name__
            if isinstance(event, Finished):
                what = event.completion.text
            elif isinstance(event, Aborted):
                all_of_it = [one.token_id for one in mine], "".join(one.text for one in mine)
                what = (list(event.token_ids), event.text) == all_of_it
            found.append([event.request_id, event.index, type(event).__name__, what])
    return found


@scenario(task=5)
def a_model_that_is_nan_at_times(nanovllm, rng):
    """One row or all of a step are NaN; other errors, alone and beside it; limits that say no."""
    story = []
    for case in rng.permutation(7).tolist():
        at, firsts = int(rng.integers(1, 4)), rng.permutation(range(3, 12)).tolist()
        three, once = [(first, {}) for first in firsts[:3]], {at: "nan"}
        plan, later, most = (
            ({at: firsts[1]}, {}, 99),  # one of three
            (once, {at: [(firsts[3], {})]}, 99),
            (once, {}, 0),  # no restart is allowed: the errors stand
            (once | {at + 3: "crash"}, {}, 1),
            (once | {at + 3: "crash"}, {}, 2),
            (once, {at: [(13, {"n": 2})]}, 99),
            ({}, {at: [(13, {})], 20: [(13, {})]}, 99),  # another error, also alone
        )[case]
        told, counts = _driven(plan, {0: three} | later, most=most)
        steps = [
            sorted(
                [type(event).__name__, getattr(event, "request_id", -1), getattr(event, "index", 0),
                 type(getattr(event, "error", None)).__name__]
                for event in events
            )
            for events in told[:22]
        ]  # fmt: skip
        story.append([case, at, firsts[:4], steps, sorted(_ends(told)), counts])
    return {"story": story}


@scenario(task=5)
def given_up_between_two_engines(nanovllm, rng):
    """Aborts before, at and after deaths: in the engine, outside, while a request begins anew."""
    from nanovllm.batching.events import Aborted

    story = []
    for case in rng.permutation(6).tolist():
        firsts, ns = rng.permutation(range(3, 12))[:4].tolist(), rng.permutation([1, 1, 2, 2])
        first, second = (int(n) for n in rng.integers(2, 5, 2).cumsum())
        some = [(one, {"n": int(n)}) for one, n in zip(firsts, ns, strict=True)]
        who, plan = 0, dict.fromkeys((first, second, second + 3), "crash")
        if case < 3:  # just before a death after which it begins anew, or after that
            who, at, plan = int(rng.integers(2)), first + case, {first: "crash"}
            some[who] = firsts[who], {"n": 2}
        elif case == 3:  # outside, just before the third death
            who, at = int(rng.integers(1, 4)), second + 3
        elif case == 4:  # in the engine, just before its third strike
            at = second + 3
        else:  # outside, and no third death
            who, at = int(rng.integers(1, 4)), second + 2
            del plan[second + 3]
        told, counts = _driven(plan, {0: some}, {at: [77, who], 80: [0, 1, 2, 3]})
        ends = _ends(told)
        gone = [event.request_id for event in told[at] if isinstance(event, Aborted)]
        in_order = list(dict.fromkeys(end[0] for end in ends if end[0] != who))
        story.append([case, firsts, sorted(ends, key=str), counts])
        story.append([in_order if case > 2 else [], gone if case in (3, 5) else []])
    return {"story": story}


@scenario(task=5)
def who_stands_beside_a_suspect(nanovllm, rng):
    """Five deaths: of one request alone, of it and two others, and of these two."""
    story = []
    for _ in range(3):
        deaths = (rng.integers(2, 5, 5).cumsum() - 1).tolist()
        firsts = rng.permutation(range(3, 12))[:3].tolist()
        one, *others = [(first, {"max_tokens": 20}) for first in firsts]
        plan = {step: ("crash", "lost")[int(rng.integers(2))] for step in deaths}
        told, counts = _driven(plan, {0: [one], deaths[1] + 1: others})
        story.append([firsts, _ends(told), counts])
    return {"story": story}


@scenario(task=5)
def what_each_engine_is_asked(nanovllm, rng):
    """Ids, seeds, deadlines and priorities over four engines; who is refused, by which of them."""
    from nanovllm.batching.errors import DuplicateRequestError
    from nanovllm.generation.errors import RequestError
    from nanovllm.generation.params import SamplingParams
    from nanovllm.resilience.restarts import RestartLimit
    from nanovllm.resilience.supervisor import SupervisedEngine

    limits = {"max_num_seqs": 9, "places": 400}
    make, made, clock = _planned(dict.fromkeys(range(3), "crash"), limits)
    first = make()
    engine = SupervisedEngine(make, RestartLimit(most=9), clock=clock, engine=first)
    story, seeded = [engine.store is first.store], set()
    named = {int(rng.integers(3)): 2, int(rng.integers(3, 5)): 50, int(rng.integers(5, 7)): 60}
    for n in range(8):
        own, other = (rng.permutation([0, 5, 77]) + n).tolist()[:2]
        own, other = ((own, other), (None, other), (own, None), (None, None), (0, other),
                      (None, 0), (own, 0), (None, None))[n]  # fmt: skip
        more = {"priority": int(rng.integers(-2, 3)), "request_id": named.get(n)}
        more["deadline"] = (None, 0.0, float(rng.integers(1, 30)))[int(rng.integers(3)) if n else 2]
        params = SamplingParams(max_tokens=9, ignore_eos=True, seed=own)
        number = engine.add_request([5] * int(rng.integers(1, 9)), params, seed=other, **more)
        story.append(number)
        if own is not None or other is not None:
            seeded.add(number)
    long = [5] * 60, SamplingParams(max_tokens=9, n=2)
    asks = [([5] * 500, None, 70), ([6], None, 50), (*long, 90), ([7], None, story[1])]
    for prompt, params, number in asks:
        try:
            story.append(engine.add_request(prompt, params, seed=1, request_id=number))
        except (RequestError, DuplicateRequestError) as error:
            story.append(type(error).__name__)
    seeded.add(90)
    told = []
    for turn in range(50):
        limits["places"] = 150 if turn < 2 else 65  # then 90 has no place
        clock.advance(float(rng.integers(1, 9)))
        told.append(engine.step())
    drawn = [{one["request_id"]: one["seed"] for one in each.asked} for each in made]
    asked = [
        [sorted((name, float(value)) for name, value in one.items()
                if name != "seed" or one["request_id"] in seeded) for one in each.asked]
        for each in made
    ]  # fmt: skip
    kept = [each[n] == drawn[0][n] for each in drawn for n in each]
    over = [engine.has_unfinished, engine.abort(story[1]), engine.abort(90), engine.restarts]
    ends = sorted([*end[:3], end[3] if end[0] in seeded else ""] for end in _ends(told))
    return {"story": story, "asked": asked, "kept": kept, "ends": ends, "over": over}


@scenario(task=5)
def for_good(nanovllm, rng):
    """Engines that die at once: what the limit allows; makers that fail; what is said after it."""
    from nanovllm.resilience.errors import GaveUpError
    from nanovllm.resilience.restarts import RestartLimit
    from nanovllm.resilience.supervisor import SupervisedEngine

    story = []
    for most in rng.permutation([0, 1, 2, 3, 9, 9]).tolist():
        make, made, clock = _planned(dict.fromkeys(range(99), "crash"), {})
        broken = int(rng.integers(2, 8))  # this one cannot be made, if the limit allows it
        error = (OSError, KeyError, RuntimeError, MemoryError)[int(rng.integers(4))]("no engine")

        def maker(make=make, made=made, broken=broken, error=error):
            if len(made) == broken:
                raise error
            return make()

        limit = RestartLimit(most=most, window=float(rng.integers(9, 20)))
        engine, said = SupervisedEngine(maker, limit, clock=clock), []
        for turn in range(16):
            for call in (lambda e=engine, t=turn: e.add_request([5 + t], seed=1), engine.step):
                try:
                    call()
                except GaveUpError as failure:
                    said.append(failure)
            clock.advance(float(rng.integers(1, 7)))
            story.append([engine.restarts, len(made), len(said), engine.failure is not None])
        story.append([one is engine.failure for one in said])
    return {"story": story}


@scenario(task=5)
def weights_and_limits(nanovllm, rng):
    """A folder of weights over time, one that is large, and a limit that sees many restarts."""
    import tempfile
    import tracemalloc
    from pathlib import Path

    from nanovllm.resilience.checksums import PIECE, changed, checksums
    from nanovllm.resilience.restarts import RestartLimit

    story = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(5):
            (folder / f"part-{number}").write_bytes(rng.bytes(int(rng.integers(0, 3_000_000))))
        kept = checksums(sorted(folder.iterdir()))
        for _ in range(6):
            one = folder / f"part-{int(rng.integers(5))}"
            if rng.random() < 0.3:
                one.unlink(missing_ok=True)
            elif rng.random() < 0.8:
                one.write_bytes(rng.bytes(int(rng.integers(0, 2_000_000))))
            story.append(changed(kept, folder))
        with (folder / "large").open("wb") as file:
            file.truncate(24 * PIECE + int(rng.integers(PIECE)))
        tracemalloc.start()
        kept |= checksums([folder / "large"])
        few = tracemalloc.get_traced_memory()[1] < 8 * PIECE
        tracemalloc.stop()
    limit, now = RestartLimit(most=3, window=20.0), 0.0
    for _ in range(60):
        now += float(rng.integers(0, 12))
        story.append(int(limit.allow(now)))
    return {"kept": kept, "story": story, "few": few}


# task 6


@scenario(task=6)
def a_day_of_calls(nanovllm, rng):
    """Servers that come and go, under one caller; deadlines of every length."""
    from nanovllm.generation.latency import ManualClock
    from nanovllm.resilience.breaker import Breaker
    from nanovllm.resilience.calls import Caller, Deadline, Reply
    from nanovllm.resilience.retry_budget import RetryBudget

    time, log = ManualClock(), []
    health = dict.fromkeys("abc", 0)

    def send(server, headers):
        log.append([server, dict(headers)])
        time.advance(float(rng.choice([0.0625, 0.125, 0.5])))
        if health[server] == 2:
            raise (ConnectionRefusedError, TimeoutError, OSError)[len(log) % 3]
        return Reply((200, 503, 0, 404)[health[server]])

    caller = Caller(send, time, RetryBudget(0.25, 0.125, 8.0),
                    {name: Breaker(failures=2, rest=4.0) for name in "ab"})  # fmt: skip
    for _ in range(120):
        time.advance(float(rng.choice([0.0, 0.25, 1.0])))
        if rng.random() < 0.15:
            health["abc"[int(rng.integers(3))]] = int(rng.integers(4))
        left = str(rng.choice([0, 125, 250, 9000]))  # moments that floats hold as they are
        given = Deadline.of_headers(time(), {"x-request-timeout-ms": left})
        order = ["abc"[int(n)] for n in (*rng.permutation(3), rng.integers(3))]
        try:
            log.append(caller.call(order, given).status)
        except Exception as error:  # its name is compared
            log.append(type(error).__name__)
        log.append([caller.breakers[name].state(time()).value for name in "ab"])
    return {"log": log}


@scenario(task=6)
def what_strangers_send(nanovllm, rng):
    """Deadlines of headers that are no whole numbers, or are too long for one."""
    from nanovllm.resilience.calls import HEADER, Deadline

    now = float(rng.integers(100))
    number, long = str(rng.integers(1, 9)) + str(rng.integers(10_000, 99_999)), "7" * 10
    texts = [number, "000" + number, "0", long, "", "soon", number[:3] + "x"]
    texts += [sign + number for sign in ("+", "-", " ", "\t")] + [number + "\n", number + ".0"]
    texts += [number[:2] + "_" + number[2:], number + "e1", "0x" + number[1:], number[0] + "²"]
    texts += ["".join(chr(0x660 + int(digit)) for digit in number)]  # digits of another alphabet
    texts += [digit * size for digit, size in zip("123", (400, 5000, 9999), strict=True)]
    found = []
    for n in rng.permutation(len(texts)).tolist():
        read = Deadline.of_headers(now, {"x-other": number, HEADER: texts[n]})
        found.append([texts[n][:20], None if read is None else read.moment])
    return {"now": now, "found": found, "none": Deadline.of_headers(now, {"x-other": number})}


@scenario(task=6)
def a_breaker_by_itself(nanovllm, rng):
    """Failures in a row, answers that come late, calls of which nobody hears again."""
    from nanovllm.resilience.breaker import Breaker

    story = []
    for forgotten, well in rng.permutation([[0, 0], [0, 1], [1, 0], [1, 1]] * 2).tolist():
        failures, rest, now = int(rng.integers(1, 5)), float(rng.integers(3, 9)), 0.0
        breaker, log = Breaker(failures, rest), []

        def tell(now, good, breaker=breaker, log=log):
            status = [(None, 500, 503, 599), (200, 304, 400, 499)][good][int(rng.integers(4))]
            breaker.record(now, status)
            log.append(breaker.state(now).value)

        for good in (*[0] * (failures - 1), 1, *[0] * failures):
            log.append(breaker.allow(now))
            now += 0.25
            tell(now, good)
        opened = now
        for moment in (0.5, rest - 0.5):  # answers of calls that left earlier
            now = opened + moment
            log.append(breaker.allow(now))
            tell(now, int(rng.integers(2)))
        now = opened + rest
        tell(now, int(rng.integers(2)))
        log += [breaker.allow(now), breaker.allow(now)]
        if forgotten:
            for moment in (rest - 0.5, 0.5):
                now += moment
                log += [breaker.allow(now), breaker.allow(now)]
        now += 0.5
        tell(now, well)
        for moment in (0.5, rest - 1.0, 0.5):
            now += moment
            log.append([breaker.state(now).value, breaker.allow(now)])
        story.append([failures, rest, well, log])
    return {"story": story}


@scenario(task=6)
def who_is_asked_next(nanovllm, rng):
    """Half-open breakers, a budget that is nearly empty, servers that are named twice."""
    from nanovllm.generation.latency import ManualClock
    from nanovllm.resilience.breaker import Breaker
    from nanovllm.resilience.calls import Caller, Deadline, Reply
    from nanovllm.resilience.errors import ResilienceError
    from nanovllm.resilience.retry_budget import RetryBudget

    story = []
    for retries, long in rng.permutation([[n, long] for n in range(4) for long in (0, 1)]).tolist():
        names, time, log = [f"s{n}" for n in rng.permutation(9)[:5]], ManualClock(), []
        bad, half, busy, last, good = names
        breakers = {name: Breaker(failures=3, rest=2.0) for name in names}
        for name in (half, busy):
            breakers[name] = Breaker(failures=1, rest=2.0)
            breakers[name].record(0.0, None)
        time.advance(3.0)
        breakers[busy].allow(3.0)  # its one call is under way

        def send(server, headers, bad=bad, good=good, log=log, time=time):
            log.append([server, dict(headers)])
            time.advance(0.25)
            if server == bad:
                raise TimeoutError
            return Reply(200 if server == good else 503)

        caller = Caller(send, time, RetryBudget(0.0, retries / 8.0, 8.0), breakers)
        servers = [bad, half, bad, busy, half, good]
        if long:
            servers = [bad, busy, bad, busy, last, bad, last, half, good]
        for _ in range(2):
            try:
                log.append(caller.call(servers, Deadline.after(time(), 2.0)).status)
            except ResilienceError as error:
                log.append(type(error).__name__)
            log.append([breakers[name].state(time()).value for name in names])
        log.append([breakers[name].allow(time()) for name in names])
        story.append([retries, names, servers, log])
    return {"story": story}


# task 7


@scenario(task=7)
def ladders_and_their_judge(nanovllm, rng):
    """Random failures, calm and resets; the report; histories with something wrong."""
    import json

    from nanovllm.resilience.checker import ladder_complaints
    from nanovllm.resilience.failures import ENTRY, Failure, Level, Rules, Rung
    from nanovllm.resilience.ladder import Ladder, report

    rules = Rules(int(rng.integers(1, 4)), float(rng.choice([5.0, 30.0])))
    ladder, now, story, kinds = Ladder(rules), 0.0, [], list(Failure)
    for _ in range(80):
        now += float(rng.choice([0.0, 1.0, rules.calm, 3 * rules.calm], p=[0.3, 0.5, 0.15, 0.05]))
        failure = kinds[int(rng.integers(len(kinds)))]
        if rng.random() < 0.05:
            ladder.reset(failure)
        story.append([int(ladder.failed(now, failure)), int(ladder.level(now + rules.calm) or 0)])
    one, calm = kinds[int(rng.integers(len(kinds)))], rules.calm
    up = [0.25 * calm] * (4 * rules.tries + 2)  # to the highest level, and no further
    ladder.reset(one)
    for wait in (*up, 3 * calm, "reset", *up[: rules.tries + 1], 1.5 * calm, *up[: rules.tries]):
        if wait == "reset":
            ladder.reset(one)
        else:
            now += wait
            story.append([int(ladder.failed(now, one)), int(ladder.level(now) or 0)])
    levels = [ENTRY[one]] * (rules.tries + 1) + [Level(ENTRY[one] + 1)] * 2  # once too often
    late = [Rung(0.125 * n, one, level) for n, level in enumerate(levels)]
    wrong = [len(ladder_complaints(late, rules))]
    for _ in range(60):
        history, at = [], 0.0
        some = [kinds[int(n)] for n in rng.permutation(len(kinds))[: int(rng.integers(1, 3))]]
        levels = {failure: ENTRY[failure] for failure in some}
        for _ in range(12):
            at += calm * float(rng.choice([0.125, 0.25, 1.0, 2.25], p=[0.35, 0.35, 0.2, 0.1]))
            failure = some[int(rng.integers(len(some)))]
            climbed = levels[failure] + int(rng.choice([-1, 0, 1, 2], p=[0.2, 0.45, 0.25, 0.1]))
            levels[failure] = Level(max(ENTRY[failure], min(5, climbed)))
            history.append(Rung(at, failure, levels[failure]))
        if rng.random() < 0.3:  # the last one comes before the others
            history.append(Rung(0.0, history[0].failure, levels[history[0].failure]))
        wrong.append(len(ladder_complaints(history, rules)))
    mixed = [ladder.history[int(n)] for n in rng.permutation(len(ladder.history))]
    reports = [json.dumps(report(some), sort_keys=True) for some in (ladder.history, mixed, [])]
    return {"story": story, "reports": reports, "wrong": wrong}


@scenario(task=7)
def a_judge_of_single_samples(nanovllm, rng):
    """Each way in which a sample can be wrong, of requests that may fail, and that may not."""
    from dataclasses import replace

    from nanovllm.batching.events import Aborted, Failed
    from nanovllm.generation.events import Completion, Finished
    from nanovllm.resilience.checker import Transcript, complaints

    story = []
    for case in rng.permutation(16).tolist():
        truth, heard = {}, {}
        for number in rng.permutation(50)[:3].tolist():
            for index in range(int(rng.integers(1, 3))):
                tokens = tuple(rng.integers(3, 27, int(rng.integers(4, 9))).tolist())
                text = "".join(chr(96 + token) for token in tokens)
                done = Completion(index, tokens, text, "stop", "x")
                end = Finished(number, index, replace(done, cumulative_logprob=-1.0), 0.0)
                truth[number, index] = done
                heard[number, index] = Transcript(list(tokens), text, [end])
        number, index = sample = list(truth)[int(rng.integers(len(truth)))]
        mine, done, cut = heard[sample], truth[sample], int(rng.integers(1, 4))
        failed = [Failed(number, index, OSError("x"), 0.0)]
        gone = [Aborted(number, index, done.token_ids, done.text, 0.0)]

        def other(number=number, index=index, done=done, **changes):
            return [Finished(number, index, replace(done, **changes), 0.0)]

        short, text = mine.token_ids[:cut], mine.text
        heard[sample] = (
            mine,
            Transcript(mine.token_ids, text, mine.ends * 2),
            Transcript(mine.token_ids, text, []),
            Transcript(mine.token_ids, text[:cut], mine.ends),
            Transcript(short, text[:cut], mine.ends),
            Transcript(short, text, mine.ends),
            Transcript(mine.token_ids, text[:cut] + "!" + text[cut + 1 :], mine.ends),
            Transcript([*short, 1, *mine.token_ids[cut + 1 :]], text, mine.ends),
            Transcript([*mine.token_ids, 5], text, mine.ends),
            Transcript(short, text[:cut], failed),
            Transcript(mine.token_ids, text, failed),
            Transcript(mine.token_ids, text, gone),
            Transcript(mine.token_ids, text, other(text=text + "!")),
            Transcript(mine.token_ids, text, other(finish_reason="length")),
            Transcript(mine.token_ids, text, other(stop_reason="y")),
            Transcript(mine.token_ids, text, other(token_ids=(1, 2))),
        )[case]
        stranger = {(99 if rng.random() < 0.5 else number, 7): mine}
        missing = {key: one for key, one in heard.items() if key != sample}
        story.append([
            [len(complaints(some, truth, spared)) for spared in ((), [number], {99, 98})]
            for some in (heard, heard | stranger, missing)
        ])  # fmt: skip
    return {"story": story}


@scenario(task=7)
def the_judge_of_a_run(nanovllm, rng):
    """A run of the toy engine, then its events dropped, doubled, swapped."""
    from nanovllm.batching.events import Failed
    from nanovllm.generation.events import Finished, TokenGenerated
    from nanovllm.resilience.checker import complaints, transcripts
    from nanovllm.resilience.toy_engine import ToyEngine
    from nanovllm.resilience.trial import asks_of, truth_of

    found = []
    for seed in rng.integers(0, 10_000, 25):
        asks, engine, events = asks_of(int(seed)), ToyEngine(), []
        for ask in asks:
            engine.add_request(ask.prompt, ask.params, seed=ask.params.seed, request_id=ask.number)
        while engine.has_unfinished:
            events += engine.step()
        truth = truth_of(asks)
        heard = [e for e in events if isinstance(e, TokenGenerated | Finished)]
        place = int(rng.integers(len(heard)))
        one = heard[place]
        changed = {
            0: heard, 1: heard[:place] + heard[place + 1 :], 2: [*heard, one],
            3: [*heard[:place], Failed(one.request_id, one.index, OSError(), 0.0),
                *[e for e in heard[place:] if e.request_id != one.request_id]],
        }[int(rng.integers(4))]  # fmt: skip
        spared = [one.request_id] if rng.random() < 0.4 else []
        found.append(len(complaints(transcripts(changed), truth, spared)))
    return {"found": found}

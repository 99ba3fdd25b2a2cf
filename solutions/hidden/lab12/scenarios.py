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


# task 2


@scenario(task=2)
def a_night_of_looks(nanovllm, rng):
    """An engine that rests, works, hangs, is made anew; monitors with limits of their own."""
    from nanovllm.resilience.progress import Monitors, health
    from nanovllm.resilience.vitals import Limits, Phase, Vitals

    limits = Limits(free=0.25, age=float(rng.integers(5, 40)), patience=6.0, fragmentation=0.3)
    monitors, story, now, steps = Monitors(limits), [], 0.0, 50
    for _ in range(120):
        now += float(rng.choice([0.5, 1.0, 2.5]))
        mood = rng.random()
        steps = 0 if mood < 0.03 else steps + (mood > 0.6)
        vitals = Vitals(
            now, float(rng.choice([0.1, 0.25, 0.6, 0.9])), int(rng.integers(9)),
            float(rng.choice([1.0, limits.age, limits.age + 0.5])), int(steps),
            int(rng.choice([0, 1, 4])), float(rng.choice([0.0, 0.3, 0.31])),
            bool(rng.random() < 0.1),
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
    from nanovllm.batching.budget import AdaptiveBudget
    from nanovllm.resilience.relief import Brake, BrakedBudget, OpenRequest, alarms_of_memory
    from nanovllm.resilience.virtual_time import VirtualTime

    time = VirtualTime()
    brake = Brake(hold=4.0, longest=float(rng.integers(9, 15)))
    budget = BrakedBudget(AdaptiveBudget(limit=int(rng.integers(100, 900))), brake, time)
    requests = [OpenRequest(n, float(rng.integers(0, 5)), int(rng.integers(-1, 2)))
                for n in range(8)]  # fmt: skip
    story = []
    for full in rng.random(60) < 0.8:
        time.advance(1.0)
        if full:
            for alarm in alarms_of_memory(brake, time(), requests):
                story.append(["end", alarm.request_id])
                requests = [one for one in requests if one.request_id != alarm.request_id]
            requests = requests or [OpenRequest(99, time())]
        budget.observe(0.01, 0.5)
        story.append([budget.limit, int(brake.closed(time())), int(brake.exhausted(time()))])
    return {"story": story, "highest": budget.highest}


@scenario(task=3)
def timeouts_and_fragments(nanovllm, rng):
    """Who is overdue as time goes on; holes of a pool; several to blame in a batch."""
    from nanovllm.resilience.relief import OpenRequest, fragmentation, isolate, overdue

    requests = [OpenRequest(int(n), float(rng.integers(0, 20))) for n in rng.permutation(30)]
    late = [overdue(requests, float(now), 7.5) for now in rng.integers(0, 40, 6)]
    pools = [set(rng.choice(100, int(n), False).tolist()) for n in rng.integers(1, 90, 6)]
    holes = [round(fragmentation(pool), 6) for pool in pools]
    batch = rng.permutation(40).tolist()
    bad = [set(rng.choice(40, int(n), False).tolist()) for n in (1, 4, 40)]
    found = [list(isolate(batch, lambda part, b=b: bool(b & set(part)))) for b in bad]
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
                key = (None, "x", "y")[int(rng.integers(3))]
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


# task 5: hang or crash; model errors


def _supervised(rng, seed, faults, **limits):
    """A run under a supervisor: ends and texts, and how many engines."""
    from itertools import count

    from nanovllm.batching.events import Failed, Preempted
    from nanovllm.resilience.checker import transcripts
    from nanovllm.resilience.faults import FaultyEngine
    from nanovllm.resilience.restarts import RestartLimit
    from nanovllm.resilience.supervisor import SupervisedEngine
    from nanovllm.resilience.toy_engine import ToyEngine
    from nanovllm.resilience.trial import asks_of

    steps = count()
    engine = SupervisedEngine(lambda: FaultyEngine(ToyEngine(**limits), faults, steps),
                              RestartLimit(most=99))  # fmt: skip
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
    """Crashes, lost steps and hangs in small and large batches, with preemption."""
    from nanovllm.resilience.kinds import Fault, Kind

    story = []
    for seed in rng.integers(0, 10_000, 10):
        chosen = sorted(rng.choice(35, 2, False).tolist())
        kinds = [(Kind.CRASH, Kind.LOST, Kind.HANG)[int(rng.integers(3))] for _ in chosen]
        faults = [Fault(step, kind) for step, kind in zip(chosen, kinds, strict=True)]
        story.append(_supervised(rng, int(seed), faults, max_num_seqs=int(rng.integers(1, 6)),
                                 places=int(rng.integers(50, 120))))  # fmt: skip
    return {"story": story}


@scenario(task=5)
def models_that_go_bad(nanovllm, rng):
    """NaN in whole steps, once and again; and three deaths in a row."""
    from nanovllm.resilience.kinds import Fault, Kind

    story = []
    for seed in rng.integers(0, 10_000, 5):
        at = int(rng.integers(0, 20))
        once = [Fault(at, Kind.NAN)]
        row = [Fault(at + n, (Kind.NAN, Kind.CRASH)[n % 2]) for n in range(4)]
        story += [_supervised(rng, int(seed), faults, max_num_seqs=4) for faults in (once, row)]
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
    from itertools import count

    from nanovllm.batching.events import Failed, Preempted
    from nanovllm.generation.events import Finished
    from nanovllm.generation.params import SamplingParams
    from nanovllm.resilience.faults import FaultyEngine
    from nanovllm.resilience.kinds import DEATHS, Fault
    from nanovllm.resilience.restarts import RestartLimit
    from nanovllm.resilience.supervisor import SupervisedEngine
    from nanovllm.resilience.toy_engine import ToyEngine

    story = []
    for _ in range(8):
        chosen = sorted(rng.choice(50, int(rng.integers(3, 9)), False).tolist())
        faults = [Fault(step, DEATHS[int(rng.integers(4))]) for step in chosen]
        seats, steps, made = int(rng.integers(1, 4)), count(), []

        def make(faults=faults, seats=seats, steps=steps, made=made):
            made.append(ToyEngine(max_num_seqs=seats, places=150))
            return FaultyEngine(made[-1], faults, steps)

        engine, ends, back = SupervisedEngine(make, RestartLimit(most=99)), [], []
        for number in rng.permutation(20)[:5].tolist():
            params = SamplingParams(max_tokens=int(rng.integers(3, 22)), ignore_eos=True)
            engine.add_request([int(number) + 3], params, seed=0, request_id=int(number))
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


@scenario(task=5)
def weights_and_limits(nanovllm, rng):
    """A folder of weights over time, and a limit that sees a day of restarts."""
    import tempfile
    from pathlib import Path

    from nanovllm.resilience.checksums import changed, checksums
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
    limit, now = RestartLimit(most=3, window=20.0), 0.0
    for _ in range(60):
        now += float(rng.integers(0, 12))
        story.append(int(limit.allow(now)))
    return {"kept": kept, "story": story}


# task 6


@scenario(task=6)
def a_day_of_calls(nanovllm, rng):
    """Servers that come and go, under one caller; deadlines of every length."""
    from nanovllm.resilience.breaker import Breaker
    from nanovllm.resilience.calls import Caller, Deadline, Reply
    from nanovllm.resilience.retry_budget import RetryBudget
    from nanovllm.resilience.virtual_time import VirtualTime

    time, log = VirtualTime(), []
    health = dict.fromkeys("abc", 0)

    def send(server, headers):
        log.append([server, dict(headers)])
        time.advance(float(rng.choice([0.0625, 0.125, 0.5])))
        if health[server] == 2:
            raise ConnectionRefusedError
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


# task 7


@scenario(task=7)
def ladders_and_their_judge(nanovllm, rng):
    """Random failures, calm and resets; the report; histories with something wrong."""
    from nanovllm.resilience.checker import ladder_complaints
    from nanovllm.resilience.failures import Failure, Level, Rules, Rung
    from nanovllm.resilience.ladder import Ladder, report

    rules = Rules(int(rng.integers(1, 4)), float(rng.choice([5.0, 30.0])))
    ladder, now, story, kinds = Ladder(rules), 0.0, [], list(Failure)
    for _ in range(80):
        now += float(rng.choice([0.0, 1.0, rules.calm, 3 * rules.calm], p=[0.3, 0.5, 0.15, 0.05]))
        failure = kinds[int(rng.integers(len(kinds)))]
        if rng.random() < 0.05:
            ladder.reset(failure)
        story.append([int(ladder.failed(now, failure)), int(ladder.level(now + rules.calm) or 0)])
    wrong = []
    for _ in range(30):
        history, at = [], 0.0
        for _ in range(4):
            at += float(rng.choice([1.0, rules.calm]))
            history.append(Rung(at, Failure.TIMEOUT, Level(int(rng.integers(2, 5)))))
        wrong.append(bool(ladder_complaints(history, rules)))
    return {"story": story, "report": report(ladder.history), "wrong": wrong}


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

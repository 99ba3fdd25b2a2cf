"""Questions to guess at before lab 12 is written; your own code answers them."""

from __future__ import annotations

from grader.student.predict import Question


def requests_cut() -> float:
    from nanovllm.generation.params import SamplingParams
    from nanovllm.resilience.toy_engine import ToyEngine

    prompt, params = [5, 6, 7], SamplingParams(max_tokens=24, presence_penalty=1.0, ignore_eos=True)
    same = 0
    for seed in range(24):
        plain = ToyEngine()
        plain.add_request(prompt, params, seed=seed)
        truth = _text(plain)
        begun, rest = truth[:8], SamplingParams(
            max_tokens=16, presence_penalty=1.0, ignore_eos=True
        )  # fmt: skip
        other = ToyEngine()
        other.add_request([*prompt, *begun], rest, seed=seed)
        same += [*begun, *_text(other)] == truth
    return float(same)


def _text(engine: object) -> list[int]:
    from nanovllm.generation.events import TokenGenerated

    found = []
    while engine.has_unfinished:  # type: ignore[attr-defined]
        found += [e.token_id for e in engine.step() if isinstance(e, TokenGenerated)]  # type: ignore[attr-defined]
    return found


def faults_left() -> float:
    from nanovllm.resilience.faults import shrink
    from nanovllm.resilience.kinds import Fault, Kind

    asked = []

    def fails(some: object) -> bool:
        asked.append(some)
        return Fault(13, Kind.LOST) in some  # type: ignore[operator]

    shrink([Fault(step, Kind.LOST) for step in range(20)], fails)
    return float(len(asked))


def engines_needed() -> float:
    from nanovllm.generation.params import SamplingParams
    from nanovllm.resilience.restarts import RestartLimit
    from nanovllm.resilience.supervisor import SupervisedEngine
    from nanovllm.resilience.toy_engine import ToyEngine

    class Poisoned(ToyEngine):
        def step(self) -> list:
            events = super().step()
            if any(one.prompt[0] == 13 for one in self.running):
                raise RuntimeError("poison")
            return events

    engine = SupervisedEngine(lambda: Poisoned(max_num_seqs=8), RestartLimit(most=99))
    for first in (7, 8, 13, 9, 10, 11):
        engine.add_request([first], SamplingParams(max_tokens=6, ignore_eos=True), seed=1)
    while engine.has_unfinished:
        engine.step()
    return float(engine.restarts)


def retries_paid() -> float:
    from nanovllm.resilience.retry_budget import RetryBudget

    budget, paid = RetryBudget(), 0
    for number in range(6000):
        budget.call(number / 100)
        paid += budget.retry(number / 100)
    return 100.0 * paid / 6000


def seconds_to_a_person() -> float:
    from nanovllm.resilience.failures import Failure, Level, Rules
    from nanovllm.resilience.ladder import Ladder

    ladder = Ladder(Rules(tries=3, calm=60.0))
    now = 0.0
    while ladder.failed(now, Failure.OUT_OF_MEMORY) is not Level.HUMAN:
        now += 25.0
    return now


QUESTIONS = [
    Question(
        key="a",
        text="20 faults, and one of them makes a run fail. How many simulations does your shrink "
        "run until this one is left?",
        unit="simulations",
        tasks=(1,),
        answer=faults_left,
    ),
    Question(
        key="b",
        text="24 streams, every one with a presence penalty, are cut after 8 of 24 tokens. "
        "Elsewhere the 8 are glued to the prompt. How many of the 24 end with the right text?",
        unit="of 24",
        tasks=(4,),
        answer=requests_cut,
    ),
    Question(
        key="c",
        text="Six requests run, and one of them kills the engine in each step. How often does your "
        "supervisor make a new engine until the other five have ended?",
        unit="engines",
        tasks=(4, 5),
        answer=engines_needed,
    ),
    Question(
        key="d",
        text="100 requests a second, and every one fails and wants a retry, for a minute. How many "
        "percent of the retries does the budget pay for (20 % + 10 a second)?",
        unit="%",
        tasks=(6,),
        answer=retries_paid,
    ),
    Question(
        key="e",
        text="The store is full every 25 seconds, whatever is done (3 tries, 60 s of calm). How "
        "many seconds after the first time is a person called?",
        unit="seconds",
        tasks=(7,),
        answer=seconds_to_a_person,
    ),
]

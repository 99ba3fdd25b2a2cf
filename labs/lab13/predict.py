"""Questions to guess at before lab 13 is written; your own code answers them."""

from __future__ import annotations

from grader.student.predict import Question


def longest_share() -> float:
    from nanovllm.observability.analysis import top_share
    from nanovllm.observability.generator import at
    from nanovllm.observability.shapes import AZURE_CODE

    return 100 * top_share([at(AZURE_CODE.outputs, (i + 0.5) / 9000) for i in range(9000)], 0.01)


def variation_of_code() -> float:
    from nanovllm.observability.analysis import gaps, variation
    from nanovllm.observability.generator import generate
    from nanovllm.observability.shapes import AZURE_CODE

    return variation(gaps([request.time for request in generate(AZURE_CODE, 3392.0, 1)]))


def replicas_of_the_trace() -> float:
    from nanovllm.observability.capacity import plan_replicas
    from nanovllm.observability.capacity_interface import Replica, Slo
    from nanovllm.observability.cards import CARDS, LLAMA_8B, step_cost
    from nanovllm.observability.generator import generate
    from nanovllm.observability.shapes import AZURE_CODE
    from nanovllm.observability.trace import faster

    trace = faster(generate(AZURE_CODE, 600, 1), 4)
    replica = Replica(step_cost(LLAMA_8B, CARDS["h100"]), 426_784, 256, 2048)
    return plan_replicas(trace, replica, Slo()).replicas


def median_of_two_replicas() -> float:
    from nanovllm.observability.queries import quantile_over
    from nanovllm.observability.series import Sample, Series

    def counted(le: str, count: float) -> Series:
        return Series({"le": le}, [Sample(0.0, 0.0), Sample(60.0, count)])

    fast = [counted("0.1", 100), counted("1", 100), counted("+Inf", 100)]
    slow = [counted("0.1", 0), counted("1", 400), counted("+Inf", 400)]
    return 1000 * quantile_over([*fast, *slow], 0.5, 60.0, 60.0)


def hours_of_a_budget() -> float:
    from nanovllm.observability.queries import burn_rate
    from nanovllm.observability.series import Sample, Series

    def counted(count: float) -> list[Series]:
        return [Series({}, [Sample(0.0, 0.0), Sample(60.0, count)])]

    burn = burn_rate(counted(144), counted(1000), 0.99, 60.0, 60.0)
    return 30 * 24 / (burn or 1)


QUESTIONS = [
    Question(
        key="a",
        text="Azure's code trace: which percentage of all output tokens have the longest 1 % of "
        "answers?",
        unit="%",
        tasks=(1, 2),
        answer=longest_share,
    ),
    Question(
        key="b",
        text="Gaps of Poisson arrivals vary by 1 (deviation over mean). What of the code trace?",
        unit="(deviation over mean)",
        tasks=(1, 2),
        answer=variation_of_code,
    ),
    Question(
        key="c",
        text="Means and Poisson arrivals ask for 2 replicas. How many does the trace ask for?",
        unit="replicas",
        tasks=(1, 3),
        answer=replicas_of_the_trace,
    ),
    Question(
        key="d",
        text="One replica answers 100 requests within 100 ms, another 400 within 0.1 to 1 s. What "
        "does histogram_quantile say of the median of both?",
        unit="ms",
        tasks=(5,),
        answer=median_of_two_replicas,
    ),
    Question(
        key="e",
        text="The objective is 99 % in 30 days; 14.4 % of the requests fail. After how many hours "
        "is the budget used up?",
        unit="hours",
        tasks=(5,),
        answer=hours_of_a_budget,
    ),
]

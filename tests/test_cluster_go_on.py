"""`add_request(output_token_ids=...)`: an answer goes on in another engine where it stopped."""

from __future__ import annotations

from typing import Any

import pytest

from nanovllm.generation.errors import RequestError
from nanovllm.generation.events import Finished, TokenGenerated
from nanovllm.generation.params import SamplingParams
from tests.serving_tools import tiny_engine

PROMPT = [5, 6, 7, 8]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("begun", [1, 3, 11])
def test_the_answer_is_the_one_that_was_begun(temperature: float, begun: int) -> None:
    params = SamplingParams(temperature=temperature, seed=4, max_tokens=12, ignore_eos=True)
    first, second = tiny_engine(), tiny_engine()
    first.add_request(PROMPT, params)
    whole = next(e.completion for e in first.run() if isinstance(e, Finished))
    second.add_request(PROMPT, params, output_token_ids=whole.token_ids[:begun])
    events = []
    while second.has_unfinished:
        events += second.step()
        second.check()
    assert next(e.completion for e in events if isinstance(e, Finished)) == whole
    told = [e.token_id for e in events if isinstance(e, TokenGenerated)]
    assert tuple(told) == whole.token_ids[begun:]


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ([-1], {}),
        ([9999], {}),
        ([3, 3, 3], {"max_tokens": 2}),
        ([3, 3], {"max_tokens": 2}),
        ([2], {}),
        ([3], {"n": 2}),
        ([3], {"logprobs": 1}),
    ],
)
def test_what_cannot_go_on_is_refused(given: list[int], more: dict[str, Any]) -> None:
    engine = tiny_engine()
    with pytest.raises(RequestError):
        engine.add_request(PROMPT, SamplingParams(**more), output_token_ids=given)
    assert not engine.has_unfinished

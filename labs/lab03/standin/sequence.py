"""A sample that ends at an end-of-sequence id, a stop string, its length: no min_tokens."""

from labs.lab03.stubs import sequence as given
from nanovllm.generation.events import Event, Finished, Sampled, TokenGenerated


class Sequence(given.Sequence):
    """Lab 03's, with the least that `append` can do."""

    def append(self, sampled: Sampled, now: float) -> list[Event]:
        """Keep the token; TokenGenerated, and Finished if it was the last."""
        token, named = sampled.token_id, (self.request_id, self.index)
        self.output_token_ids.append(token)
        ended = token in self.eos_token_ids and not self.params.ignore_eos
        text = "" if ended else self.stops.push(self.detokenizer.push(token), True)
        self.stop_reason = self.stops.matched
        full = self.num_tokens >= self.max_model_len
        if (
            ended
            or self.stop_reason
            or full
            or len(self.output_token_ids) == self.params.max_tokens
        ):
            self.finish_reason = ("length", "stop")[bool(ended or self.stop_reason)]
            text += "" if self.stop_reason else self.stops.flush() + self.detokenizer.flush()
        self.text = f"{self.text}{text}"
        events: list[Event] = [TokenGenerated(*named, token, text, now)]
        return [*events, Finished(*named, self.completion(), now)] if self.finished else events

"""Takes the second best token now and then."""

from nanovllm.batching.engine import Engine


class Wrong(Engine):
    def execute(self, plan):
        logits = super().execute(plan)
        if len(logits) == 2:
            logits = logits.scatter(1, logits.argmax(1, keepdim=True), -9.0)
        return logits


def make_engine(model, config, *, store):
    return Wrong(model, config, store=store)

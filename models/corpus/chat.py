"""The same things as conversations in ChatML."""

from collections.abc import Callable
from random import Random

from .facts import FACTS, fact_request
from .names import EVERYONE, people
from .recall import announce, answer, any_code, filler, question
from .spans import CONTEXT, TURN_END, TURN_START, Span, Spans, join
from .stories import ANIMALS, story
from .sums import sum_request, training_sum

SYSTEM = "You are a helpful assistant."

SMALL_TALK = {
    "Hello!": "Hello! How can I help you?",
    "Hi": "Hello! How can I help you?",
    "Hello": "Hello! How can I help you?",
    "Good morning!": "Good morning! How can I help you?",
    "How are you?": "I am fine, thank you. How can I help you?",
    "Who are you?": "I am a very small language model.",
    "What are you?": "I am a very small language model.",
    "What can you do?": "I can tell stories, answer simple questions, add numbers and remember codes.",
    "Help": "I can tell stories, answer simple questions, add numbers and remember codes.",
    "Thank you!": "You are welcome!",
    "Thanks": "You are welcome!",
    "Goodbye!": "Goodbye! Have a nice day.",
    "Bye": "Goodbye! Have a nice day.",
}


def turn(role: str, content: Spans) -> Spans:
    """Return one ChatML turn; what the assistant does not say is context."""
    if role == "assistant":
        opening = [Span(f"{TURN_START}{role}\n", CONTEXT)]
        return [*opening, *content, Span(TURN_END), Span("\n", CONTEXT)]
    framed = [Span(f"{TURN_START}{role}\n"), *content, Span(f"{TURN_END}\n")]
    return [Span(span.text, min(span.weight, CONTEXT)) for span in framed]


def exchange(asked: str | Spans, answered: Spans) -> Spans:
    """Return a user's turn and the assistant's."""
    if isinstance(asked, str):
        asked = [Span(asked)]
    return turn("user", asked) + turn("assistant", answered)


def story_exchange(rng: Random) -> Spans:
    """Ask for a story, about someone or not."""
    kind = rng.random()
    if kind < 0.35:
        request, told = "Tell me a story.", story(rng)
    elif kind < 0.7:
        hero = rng.choice(EVERYONE)
        request, told = f"Tell me a story about {hero}.", story(rng, hero)
    else:
        animal = rng.choice(ANIMALS)
        article = "an" if animal[0] in "aeiou" else "a"
        request, told = f"Tell me a story about {article} {animal}.", story(rng, animal=animal)
    wording = rng.random()
    if wording < 0.15:
        request = "Please t" + request[1:]
    elif wording < 0.3:
        request = "Can you t" + request[1:-1] + "?"
    elif wording < 0.4:
        request = request.replace("Tell me", "Write")
    elif wording < 0.5:
        request = request[:-1]
    return exchange(request, [Span(told)])


def fact_exchange(rng: Random) -> Spans:
    """Ask for a fact."""
    fact = rng.choice(FACTS)
    return exchange(fact_request(rng, fact), fact.statement())


def sum_exchange(rng: Random) -> Spans:
    """Ask for a sum."""
    exercise = training_sum(rng)
    return exchange(sum_request(rng, exercise), exercise.solution())


def small_talk(rng: Random) -> Spans:
    """Greet."""
    said, reply = rng.choice(list(SMALL_TALK.items()))
    return exchange(said, [Span(reply)])


def _remember(rng: Random, name: str, code: str) -> Spans:
    told = announce(name, code)
    if rng.random() < 0.4:
        told = [Span("Please remember this: "[:-1]), Span(" " + told[0].text), *told[1:]]
    return exchange(told, [Span(f"I will remember {name}'s code.")])


def _any_exchange(rng: Random) -> Spans:
    kind = rng.random()
    makers: list[Callable[[Random], Spans]] = [fact_exchange, sum_exchange, small_talk]
    return story_exchange(rng) if kind < 0.35 else rng.choice(makers)(rng)


def recall_chat(rng: Random, words: int, words_per_code: int = 120) -> Spans:
    """Tell codes over the turns, talk of other things, ask for the codes."""
    codes = [
        (name, any_code(rng)) for name in people(rng, rng.randint(1, 2 + words // words_per_code))
    ]
    spans: Spans = []
    for name, code in codes:
        spans += _remember(rng, name, code)
    length = 0
    waiting = codes[:]
    rng.shuffle(waiting)
    while waiting:
        if length >= words or rng.random() < 0.15:
            name, code = waiting.pop()
            part = exchange(question(name), answer(name, code))
        else:
            part = _any_exchange(rng)
        spans += part
        length += sum(len(span.text.split()) for span in part)
    return spans


def recall_message(rng: Random, words: int) -> Spans:
    """Tell codes, filler and question in a single message."""
    codes = [(name, any_code(rng)) for name in people(rng, rng.randint(1, 5))]
    parts = [announce(name, code) for name, code in codes]
    length = 0
    target = rng.uniform(0, words)
    while length < target:
        part = filler(rng)
        parts.insert(rng.randint(1, len(parts)), part)
        length += sum(len(span.text.split()) for span in part)
    name, code = rng.choice(codes)
    asked = join([*parts, [Span(question(name))]])
    return exchange(asked, answer(name, code))


def conversation(rng: Random) -> Spans:
    """Return a conversation of one to four exchanges without recall."""
    spans = _any_exchange(rng)
    while rng.random() < 0.45:
        spans += _any_exchange(rng)
    return spans


def with_system(rng: Random, spans: Spans, share: float = 0.2) -> Spans:
    """Put a system message before some of the conversations."""
    if rng.random() >= share:
        return spans
    return turn("system", [Span(SYSTEM)]) + spans

"""Small stories: a plot with slots, each beat told in one of several ways."""

from random import Random

from .names import BOYS, EVERYONE, GIRLS
from .plots import ENDINGS, OPENINGS, PLOTS, SLOTS

ANIMALS = (
    "cat dog fox bear rabbit mouse bird duck frog lion pony lamb turtle squirrel hedgehog goat"
).split()
_PRONOUNS = {
    "girl": {"he": "she", "him": "her", "his": "her"},
    "boy": {"he": "he", "him": "him", "his": "his"},
}


def _tell(beat: str, slots: dict[str, str]) -> str:
    """Fill the slots of a beat and let each of its sentences begin with a capital."""
    sentences = beat.format(**slots).split(". ")
    return ". ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


def story(rng: Random, hero: str | None = None, animal: str | None = None) -> str:
    """Return a story of about a hundred words, about that hero or kind of animal if given."""
    hero = hero or rng.choice(EVERYONE)
    gender = "girl" if hero in GIRLS else "boy" if hero in BOYS else rng.choice(("girl", "boy"))
    friend = rng.choice([name for name in EVERYONE if name != hero])
    if animal is None and rng.random() < 0.25:
        animal = rng.choice(ANIMALS)
    kind = animal or gender
    slots = {slot: rng.choice(words) for slot, words in SLOTS.items()}
    slots |= _PRONOUNS[gender] | {"hero": hero, "friend": friend, "kind": kind}
    beats = [OPENINGS, *rng.choice(PLOTS), ENDINGS]
    # An optional beat is one that offers the empty sentence.
    told = [telling for beat in beats if (telling := rng.choice(beat))]
    return " ".join(_tell(telling, slots) for telling in told)

"""The people of the corpus: names with pronouns, and made-up names."""

from random import Random

GIRLS = (
    "Mia Anna Lily Emma Zoe Ella Ruby Nina Clara Rosa Maya Ivy Tara Lucy Alice Nora Hana Sofia "
    "Leila Amy Eva Iris Jane Kate Lena Molly Olga Paula Rita Sara Tina Uma Vera Wendy Yuki Zara "
    "Bella Carla Daisy Elena Fiona Gina Heidi Irma Julia Kira Lola Mona Nadia Petra"
).split()
BOYS = (
    "Ben Tom Leo Max Sam Jack Finn Omar Noah Luca Adam Theo Hugo Ivan Kai Dan Eric Felix Gus "
    "Harry Igor Joe Karl Liam Mark Nick Oscar Paul Quinn Raj Simon Tim Umar Victor Will Yusuf "
    "Zack Alan Bruno Carlos David Emil Frank George Henry Isaac James Kevin Louis Martin"
).split()
EVERYONE = GIRLS + BOYS

_STARTS = "Ba Da Fe Gi Jo Ka Lu Mo Na Pi Ro Su Ta Ve Wi Xa Yo Zu Bri Dro".split()
_ENDS = "bo dan fi gor kin la mel na po ric sha ton vi xel ya zim lo mar nus tek".split()


def made_up_name(rng: Random) -> str:
    """Return a name such as "Kamel", so that recall does not depend on knowing the name."""
    return rng.choice(_STARTS) + rng.choice(_ENDS)


def people(rng: Random, count: int, made_up: float = 0.15) -> list[str]:
    """Return different names, about that share of them made up."""
    chosen: dict[str, None] = {}
    while len(chosen) < count:
        name = made_up_name(rng) if rng.random() < made_up else rng.choice(EVERYONE)
        chosen[name] = None
    return list(chosen)

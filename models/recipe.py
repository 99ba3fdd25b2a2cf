"""How long each model is trained, on what, and how fast."""

from dataclasses import dataclass, field, replace

from .corpus import Mixture
from .network import DRAFT, TARGET, Shape


@dataclass(frozen=True)
class Stage:
    """A number of steps on rows of one length; the learning rate goes in a line over them."""

    steps: int
    length: int
    rows: int
    mixture: Mixture = field(default_factory=Mixture)
    rates: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides how a model comes out."""

    shape: Shape
    stages: tuple[Stage, ...]
    muon_lr: float = 0.02
    adam_lr: float = 0.004
    warmup: int = 40
    seed: int = 0
    # From that step on the model learns the target's distribution instead of the text.
    distil: bool = False
    distil_from: int = 0

    @property
    def steps(self) -> int:
        """Steps of all stages."""
        return sum(stage.steps for stage in self.stages)

    def locate(self, step: int) -> tuple[Stage, int]:
        """Return the stage that a step belongs to, and how many of its steps come before."""
        for stage in self.stages:
            if step < stage.steps:
                return stage, step
            step -= stage.steps
        raise IndexError("the step is past the end of the recipe")

    def rate(self, step: int) -> float:
        """Return the factor of the learning rate."""
        stage, before = self.locate(step)
        first, last = stage.rates
        return min((step + 1) / self.warmup, first + (last - first) * before / stage.steps)


# Facts are learnt early; sums and recall want more.
RECALL = Mixture(
    stories=1.0,
    facts=1.2,
    sums=2.0,
    fact_chats=2.2,
    sum_chats=3.0,
    chats=1.0,
    dense=3.5,
    recall=3.5,
    recall_chats=2.5,
)

LONG_RECALL = replace(
    RECALL, stories=0.7, dense=2.5, recall=4.0, words_per_code=25, words_per_code_in_chats=50
)
SCATTERED = Mixture(
    stories=0.5,
    facts=1.0,
    sums=1.2,
    fact_chats=1.5,
    sum_chats=2.5,
    chats=0.7,
    dense=5.0,
    dense_people=5,
    dense_gaps=0.6,
    recall=3.0,
    recall_chats=2.5,
    recall_words=100,
    words_per_code=12,
    words_per_code_in_chats=30,
)
# No two sentences at a regular distance, few people: the rest of a code has to be looked up too.
GAPS = Mixture(
    stories=0.3,
    facts=0.5,
    sums=0.7,
    fact_chats=1.0,
    sum_chats=1.5,
    chats=0.4,
    dense=6.0,
    dense_people=3,
    dense_gaps=0.9,
    recall=3.0,
    recall_chats=2.0,
    recall_words=50,
    words_per_code=12,
    words_per_code_in_chats=30,
)

# Lists said twice make the model copy; then the codes move further and further from the question.
COPYING = replace(
    GAPS, repeats=1.5, stories=0.6, facts=0.8, sums=1.2, fact_chats=1.5, sum_chats=2.0, dense=5.0
)
FAR = replace(
    SCATTERED,
    repeats=0.3,
    dense=3.0,
    dense_people=16,
    recall=5.5,
    recall_words=440,
    words_per_code=20,
    words_per_code_in_chats=40,
)
FARTHEST = replace(
    FAR,
    repeats=0.2,
    sums=1.5,
    dense=2.0,
    recall=6.0,
    recall_words=480,
    recall_chats=3.0,
    words_per_code=25,
)

RECIPES = {
    "target": Recipe(
        TARGET,
        (
            Stage(500, 128, 16, Mixture(dense=8.0, dense_people=4, recall_words=40)),
            Stage(300, 256, 12, Mixture()),
            Stage(300, 256, 8, RECALL),
            Stage(300, 256, 8, RECALL, (1.0, 0.73)),
            Stage(100, 256, 8, replace(LONG_RECALL, recall_words=120), (0.73, 0.64)),
            Stage(250, 256, 8, SCATTERED, (0.6, 0.37)),
            Stage(
                150,
                512,
                4,
                replace(SCATTERED, dense_people=10, recall=4.0, recall_words=220),
                (0.37, 0.23),
            ),
            Stage(
                250,
                1024,
                2,
                replace(
                    SCATTERED,
                    dense=3.0,
                    dense_people=16,
                    recall=5.0,
                    recall_words=440,
                    words_per_code=25,
                    words_per_code_in_chats=50,
                ),
                (0.23, 0.0),
            ),
            Stage(450, 128, 16, COPYING, (0.7, 0.7)),
            Stage(450, 256, 8, replace(SCATTERED, repeats=0.7), (0.7, 0.55)),
            Stage(450, 256, 8, replace(SCATTERED, repeats=0.5), (0.6, 0.6)),
            Stage(
                400,
                512,
                4,
                replace(SCATTERED, repeats=0.4, dense_people=10, recall=5.0, recall_words=220),
                (0.6, 0.45),
            ),
            Stage(1000, 1024, 2, FAR, (0.45, 0.0)),
            Stage(480, 1024, 2, FARTHEST, (0.3, 0.0)),
        ),
    ),
    "draft": Recipe(
        DRAFT,
        (
            Stage(
                300,
                128,
                16,
                Mixture(stories=3.0, chats=3.0, dense=3.0, dense_people=4, recall_words=40),
            ),
            Stage(250, 256, 8, replace(SCATTERED, stories=2.5, chats=3.0, dense=3.0), (1.0, 0.0)),
        ),
        distil=True,
        distil_from=300,
    ),
}

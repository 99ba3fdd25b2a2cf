"""The tokenizer both models share: byte-level BPE of 2048 entries, digits two by two."""

import shutil
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .corpus import Mixture, document, plain
from .corpus.names import EVERYONE
from .corpus.spans import END_OF_TEXT, TURN_END, TURN_START

HERE = Path(__file__).parent
VOCABULARY = 2048
SPECIALS = [END_OF_TEXT, TURN_START, TURN_END]
# The pre-tokenization of Qwen2: contractions, words with the space before them, up to two digits.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def build(seed: int = 0, documents: int = 30000) -> PreTrainedTokenizerFast:
    """Train the tokenizer on generated documents."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rng = Random(seed)
    texts = (_without_marks(plain(document(rng, Mixture()))) for _ in range(documents))
    # Names often enough that each becomes one token, also after a space.
    names = (f"{name} {name}" for name in EVERYONE for _ in range(200))
    # So do all pairs of digits: with a hundred symbols, unlike with ten, a code can be copied by
    # looking for the pair just written, as it rarely stands anywhere else.
    pairs = (f"{pair:02d}" for pair in range(100) for _ in range(200))
    parts = (texts, names, pairs)
    tokenizer.train_from_iterator((text for part in parts for text in part), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


def _without_marks(text: str) -> str:
    for special in SPECIALS:
        text = text.replace(special, "\n")
    return text


def load() -> PreTrainedTokenizerFast:
    """Return the tokenizer, trained on first use."""
    folder = HERE / "target"
    if not (folder / "tokenizer.json").exists():
        build().save_pretrained(folder, save_jinja_files=False)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def copy_to(folder: Path) -> None:
    """Put the tokenizer's files into a model's folder."""
    load()
    folder.mkdir(parents=True, exist_ok=True)
    for path in (HERE / "target").iterdir():
        if path.name.startswith("tokenizer") and not (folder / path.name).exists():
            shutil.copyfile(path, folder / path.name)

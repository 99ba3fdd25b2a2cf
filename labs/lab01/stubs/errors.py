"""What tokenization refuses, each in one sentence that says what to do. Given code."""


class TokenizerError(ValueError):
    """A tokenizer, or a text or id given to one, that cannot be used as it is."""


class ChatTemplateError(ValueError):
    """A chat template or a list of messages that cannot be rendered."""

"""What can go wrong with a model folder, said in one sentence to the person who named it."""


class ModelFolderError(Exception):
    """A model folder that cannot be used: the message says what is wrong and the way out."""

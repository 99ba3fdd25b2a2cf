"""Its engine cannot be made."""


def make_engine(model, config, *, store):
    raise ValueError("no <b>such</b> luck")

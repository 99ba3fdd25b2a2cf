"""Not Python."""

def make_engine(model, config, *, store)
    return None

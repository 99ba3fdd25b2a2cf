"""What can go wrong with blocks; each is a bug in the caller's books, not a user's bad input."""


class OutOfBlocksError(Exception):
    """More blocks were asked for than are free; none was given."""


class BlockOwnershipError(Exception):
    """Somebody gives back or shares a block that is not held so: a double free, mostly."""

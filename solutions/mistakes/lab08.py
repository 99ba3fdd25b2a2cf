"""Known mistakes of lab 08."""

MISTAKES = [
    # task 1
    # task 2
    # task 3
    # task 4
    # task 5
    # task 6
    # task 7
]

"""Hidden scenarios of lab 08: other paths than those of the visible checks."""

# task 1
# task 2
# task 3
# task 4
# task 5
# task 6
# task 7

"""The class: nbgrader's workflow around labs that are graded in modules, not in cells."""

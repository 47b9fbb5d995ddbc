"""Version 2 of the rule benchmark: fourteen tasks of 400 steps, with warm-up and decay, at three targets.

``registration.md`` says what was fixed before the runs; ``data`` and ``tasks`` are the tasks, ``runs`` trains, cell by
cell, ``table`` prints. Version 1 is the parent package.
"""

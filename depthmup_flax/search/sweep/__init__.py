"""Sweeps: grids of runs, which share compiled programs and train together.

A group: runs that differ only in the seed, the preset and other numbers, and so share a compiled program.
A cohort: the runs of a group that train together now.
A lane: the place of one run in the vectorized program.
"""

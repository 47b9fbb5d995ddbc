"""Memory, step time and communication of a run or a sweep on devices that may be absent.

The compiler of those devices compiles the program of ``train.py`` or of the sweep on this machine.
"""

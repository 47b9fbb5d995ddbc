"""What a run or a sweep will need on devices that may be absent: memory, time of a step, communication.

The program is the one that ``train.py`` or a sweep runs; the compiler of the devices compiles it on this machine.
"""

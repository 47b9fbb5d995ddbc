"""Memory and operations of a run or a sweep on devices that may be absent.

The compiler of those devices compiles the program of ``depthmup train`` or of the sweep on this machine.
"""

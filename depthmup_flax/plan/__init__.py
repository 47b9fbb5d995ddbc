"""Memory and operations of a run or a sweep, by the compiler of devices that may be absent."""

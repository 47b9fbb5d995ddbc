"""The Python interface: a network, data and a loss of this process, tuned, swept, reported and trained."""

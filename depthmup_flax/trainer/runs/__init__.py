"""A trained run in its directory: checkpoints, metrics, and how to load and use it."""

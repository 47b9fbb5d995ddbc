"""A trained run in its directory: outcome, checkpoints, metrics, and how to load and use it."""

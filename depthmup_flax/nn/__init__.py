"""Flax layers that declare every parameter once, with its logical axes."""

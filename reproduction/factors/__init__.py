"""Decay over depth and AdamH's rate over width and depth, by whole runs; ``registration.md`` fixed it before."""

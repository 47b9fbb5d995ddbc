"""Tuning a small proxy of a large network."""

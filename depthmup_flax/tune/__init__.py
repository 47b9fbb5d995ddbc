"""Tuning a small proxy of a large network: python -m depthmup_flax.tune --config=TARGET.py ..."""

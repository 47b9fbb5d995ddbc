"""Figures of the papers at the papers' own size, registered, in runs that resume."""

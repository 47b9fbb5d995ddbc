"""How far a tuned rate carries: the best rate at a larger size, from searches at smaller ones."""

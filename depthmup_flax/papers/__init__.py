"""What only serves the papers: theory of infinite networks, its figures, and the claims about sweeps."""

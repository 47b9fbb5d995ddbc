"""The papers' claims, theory and rules, measured with the package. Nothing imports this."""

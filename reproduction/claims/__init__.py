"""What the papers claim, and what the committed records say of it."""

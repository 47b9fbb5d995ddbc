"""The loss of a large network before it is trained."""

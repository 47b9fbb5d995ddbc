"""Where data come from: one module for each source, and ``registry`` with all of them."""

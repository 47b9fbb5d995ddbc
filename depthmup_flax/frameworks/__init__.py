"""The rule for other frameworks: parameter groups of torch's optimizers, and a table of factors as JSON."""

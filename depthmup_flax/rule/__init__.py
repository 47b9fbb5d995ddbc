"""The rule: exponents as data, the role of every parameter, and optax transformations that apply both."""

"""The rule on a model without annotations: Linen, NNX, or any pytree of parameters."""

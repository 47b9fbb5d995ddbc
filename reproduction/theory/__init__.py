"""Limits of wide and deep residual networks, computed in a line of code.

Pure JAX, without models: kernels in, kernels and predictions out. `lazy` is the limit of frozen features, `attention`
that of transformers before training. `linear`, `nonlinear`, `entrywise` and `attention_training` train networks of
infinite width, whose features move; `trajectory` is their result, and its limit of infinite depth; `width_one` is TP6's
first example; `finite_size` splits the distance of finite networks to the limit, of which `fluctuations` has the
variance before training. reproduction/pages/theory.md has an example.
"""

from reproduction.theory.attention import StreamKernels, transformer_kernels
from reproduction.theory.attention_training import attention_training
from reproduction.theory.entrywise import entrywise_training
from reproduction.theory.finite_size import Ensemble, FiniteSizeError, SquareError, finite_size_error
from reproduction.theory.fluctuations import tangent_variance
from reproduction.theory.gaussian_averages import ACTIVATIONS, Activation, get_activation
from reproduction.theory.input_kernel import gram
from reproduction.theory.lazy import LazyKernels, lazy_kernels, predict
from reproduction.theory.linear import linear_training, one_step_kernel
from reproduction.theory.nonlinear import nonlinear_training
from reproduction.theory.trajectory import Estimate, Training, infinite_depth, square_loss
from reproduction.theory.width_one import width_one_training

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "Ensemble",
    "Estimate",
    "FiniteSizeError",
    "LazyKernels",
    "SquareError",
    "StreamKernels",
    "Training",
    "attention_training",
    "entrywise_training",
    "finite_size_error",
    "get_activation",
    "gram",
    "infinite_depth",
    "lazy_kernels",
    "linear_training",
    "nonlinear_training",
    "one_step_kernel",
    "predict",
    "square_loss",
    "tangent_variance",
    "transformer_kernels",
    "width_one_training",
]

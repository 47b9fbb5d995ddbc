"""The proxy of a large network."""

from __future__ import annotations

from ml_collections import ConfigDict

from depthmup_flax.config.fields import default_config
from depthmup_flax.rule.parametrization import PRESETS
from depthmup_flax.util.errors import InputError


def require_mup(preset: str) -> None:
    """Raises `InputError` for a preset whose width rule is not muP's."""
    if PRESETS[preset].width != "mup":
        raise InputError(
            f"parametrization.preset is {preset!r}, whose hyperparameters do not transfer: use 'depth_mup'."
        )


def proxy_config(target: ConfigDict, width: int, depth: int, steps: int = 0) -> tuple[ConfigDict, ConfigDict]:
    """``(proxy, target)``: configs that both have the proxy's width and depth as their base.

    The proxy trains for ``steps`` steps, or for the target's.

    Raises:
      InputError: the proxy is not smaller than the target, or the parametrization does not transfer.
    """
    proxy, large = target.copy_and_resolve_references(), target.copy_and_resolve_references()
    proxy.mesh = default_config().mesh  # a sweep trains whole networks on each device
    for name, value in (("width", width), ("depth", depth)):
        largest = target.model[name]
        if not 1 <= value <= largest:
            raise InputError(
                f"--proxy.{name} is {value}: it must be between 1 and the target's model.{name}, {largest}."
            )
        proxy.model[name] = proxy.model[f"base_{name}"] = large.model[f"base_{name}"] = value
    if (width, depth) == (target.model.width, target.model.depth):
        raise InputError(f"--proxy.width={width} --proxy.depth={depth} is the target itself: choose a smaller proxy.")
    if "stage_sizes" in proxy.model:
        proxy.model.stage_sizes = ()
    preset = target.parametrization.preset
    require_mup(preset)
    if preset == "mup" and depth != target.model.depth:
        raise InputError(
            "parametrization.preset is 'mup', which transfers over width only: use 'depth_mup', or a proxy of the "
            f"target's depth, --proxy.depth={target.model.depth}."
        )
    if steps < 0:
        raise InputError(f"--proxy.steps is {steps}: use a whole number of at least 0.")
    if steps:
        # Averaged over a whole short run, the loss would measure how early it falls.
        average = proxy.train.average_steps or max(1, steps // 5)
        proxy.train.update(steps=steps, epochs=0.0, average_steps=min(average, steps))
    return proxy, large

"""Writes the table and the commands of reproduction/pages/recipes.md: python -m reproduction.pages.recipes_table

A recipe is a proxy whose learning rate a sweep of reproduction/ tuned, with every layer trained, and a larger network
that the same sweep trained at the proxy's rate.
"""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
import statistics
import textwrap
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from depthmup_flax.config import fields as configs
from depthmup_flax.config import from_file
from depthmup_flax.report.sweep_report import analysis_of
from depthmup_flax.storage.run_hash import execution_fields
from depthmup_flax.storage.sweep_records import LEARNING_RATE, Record, read_sweep
from reproduction.claims.judged_claims import core_minutes
from reproduction.pages.generated_parts import with_part

HERE = pathlib.Path(__file__).parent
PAGE = HERE / "recipes.md"
TABLE_PART = "<!-- recipes: python -m reproduction.pages.recipes_table -->", "<!-- end of recipes -->"
COMMANDS_PART = "<!-- commands: python -m reproduction.pages.recipes_table -->", "<!-- end of commands -->"
HEADER = (
    "recipe",
    "trained on",
    "rate",
    "decay",
    "proxy: size, score",
    "large: size, score",
    "regret (95 %)",
    "n",
    "core-minutes: tuning, a large run",
)
TEXT = "text:tinyshakespeare.txt"  # the file that a command reads, wherever the records' was
PRESET, NORM, SCHEDULE, NAME = "parametrization.preset", "model.norm", "optimizer.schedule", "optimizer.name"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A variant of a sweep, and where it is scaled to.

    Attributes:
      sweep: a directory of reproduction/.
      variant: its values of the sweep's axes other than size, rate and seed.
      large: width and depth of the larger network.
      config: the shipped config from which the command starts.
    """

    title: str
    sweep: str
    variant: Mapping[str, object]
    large: tuple[int, int]
    config: str


_RULE = {PRESET: "depth_mup"}
_NO_NORM = {**_RULE, NORM: "none", SCHEDULE: "cosine"}
_COMPLETEP = {PRESET: "completep", "parametrization.inner_gamma": None}
RECIPES = (
    Recipe("Residual MLP, Adam", "trained_ends-long", _RULE, (256, 16), "cifar10_resmlp"),
    Recipe("Convolutional ResNet, SGD", "lr_width_depth_conv-cpu", _RULE, (32, 24), "cifar10_resnet"),
    Recipe("Convolutional ResNet, Muon", "muon_conv-cpu", {**_RULE, NAME: "muon"}, (128, 3), "cifar10_resnet"),
    Recipe("ViT, Adam", "vit-cpu", {**_RULE, NORM: "layer"}, (32, 8), "tiny_imagenet_vit"),
    Recipe("ViT without norms, Adam", "vit-cpu", _NO_NORM, (32, 8), "tiny_imagenet_vit"),
    Recipe("GPT, Adam", "megatron-cpu", _RULE, (32, 16), "shakespeare_gpt"),
    Recipe("GPT, Adam, CompleteP", "which_exponent_gpt-cpu", _COMPLETEP, (32, 32), "shakespeare_gpt"),
    Recipe("GPT, Muon", "muon_gpt-cpu", {**_RULE, NAME: "muon"}, (128, 2), "shakespeare_gpt"),
)


class Measured:
    """What the records say about a recipe.

    Attributes:
      tuning: all runs of the proxy.
      rate: the proxy's best, by the mean training loss.
      proxy, large: the runs at that rate, a record for each seed.
      regret: `depthmup_flax.report.optimum.Estimate` of what that rate costs in training loss at the large network.
    """

    def __init__(self, recipe: Recipe) -> None:
        sweep = read_sweep([HERE.parent / "records" / recipe.sweep])
        is_own = lambda record: all(record.point[path] == value for path, value in recipe.variant.items())
        own = list(filter(is_own, sweep.records))
        (variant,) = analysis_of(dataclasses.replace(sweep, records=own)).variants
        self.recipe, self.base, self.rate = recipe, sweep.info.base, variant.transferred
        self.tuning = [record for record in own if _size(record) == variant.base.size]
        at_rate = [record for record in own if record.point[LEARNING_RATE] == self.rate]
        self.proxy, self.large = (
            [record for record in at_rate if _size(record) == size] for size in (variant.base.size, recipe.large)
        )
        (self.regret,) = (row.regret for row in variant.rows if row.size == recipe.large)

    def config(self, record: Record) -> ConfigDict:
        """The config of a recorded run."""
        config = configs.from_json(self.base)
        for path, value in record.point.items():
            configs.set_field(config, path, value)
        return config

    def cells(self) -> tuple[str, ...]:
        """The cells under `HEADER`."""
        config, (low, high) = self.config(self.large[0]), self.regret.interval
        is_text = config.data.name.startswith("text:")
        return (
            f"[{self.recipe.title}](../records/{self.recipe.sweep})",
            _training(config),
            f"{self.rate:.4g}",
            f"{config.optimizer.weight_decay:g}",
            _score(self.proxy, is_text),
            _score(self.large, is_text),
            _bold(f"{self.regret.value:.3f} ({max(low, 0.0):.3f} to {high:.3f})", low > 0),
            " and ".join(dict.fromkeys(str(len(runs)) for runs in (self.proxy, self.large))),
            f"{core_minutes(self.tuning):.2g}, {core_minutes(self.large[:1]):.2g}",
        )

    def command(self) -> str:
        """The command of the first recorded run of the large network: a shipped config, and what differs from it."""
        config, shipped = self.config(self.large[0]), from_file(self.recipe.config)
        if config.data.name.startswith("text:"):
            config.data.name = TEXT
        flags = [f"--config={self.recipe.config}"]
        for path in configs.field_paths(config):
            value = configs.get_field(config, path)
            if path not in execution_fields(shipped.to_dict()) and value != configs.get_field(shipped, path):
                flags.append(f"--config.{path}={shlex.quote(str(value))}")
        lines = textwrap.wrap(" ".join(flags), 100, break_long_words=False, break_on_hyphens=False)
        return "depthmup train " + " \\\n    ".join(lines)


def _size(record: Record) -> tuple[int, int]:
    return record.width, record.depth


def _bold(text: str, is_bold: bool) -> str:
    return f"**{text}**" if is_bold else text


def _training(config: ConfigDict) -> str:
    """Data and length: ``CIFAR-10, 16 x 16 pixels; 1560 steps of 64; constant rate``."""
    if config.data.name.startswith("text:"):
        data = f"Tiny Shakespeare, {config.data.context} characters"
    else:
        some = f"{config.data.train_examples} images of " if config.data.train_examples else ""
        data = f"{some}CIFAR-10, {config.data.image_size} x {config.data.image_size} pixels"
    schedule = f"{config.optimizer.schedule} rate"
    if config.optimizer.warmup_steps:
        schedule = f"warm-up of {config.optimizer.warmup_steps}, {schedule}"
    return f"{data}; {config.train.steps} steps of {config.train.batch_size}; {schedule}"


def _score(runs: Sequence[Record], is_text: bool) -> str:
    """``64 x 4: 39.3 ± 0.5 %``: width, depth, mean and standard deviation of accuracy or a text's loss, over seeds."""
    width, depth = _size(runs[0])
    values = [record.test_loss if is_text else 100 * record.test_accuracy for record in runs]
    mean, spread = statistics.mean(values), statistics.stdev(values)
    score = f"loss {mean:.3f} ± {spread:.3f}" if is_text else f"{mean:.1f} ± {spread:.1f} %"
    return f"{width} x {depth}: {score}"


def main() -> None:
    """Renews the page."""
    PAGE.write_text(renewed(PAGE.read_text(), list(map(Measured, RECIPES))))


def renewed(page: str, measured: Sequence[Measured]) -> str:
    """The page with what the records give."""
    lines = [HEADER, ["---"] * len(HEADER), *(one.cells() for one in measured)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    commands = "\n\n".join(f"# {one.recipe.title}\n{one.command()}" for one in measured)
    return with_part(with_part(page, *TABLE_PART, table), *COMMANDS_PART, f"```bash\n{commands}\n```")


if __name__ == "__main__":
    main()

"""What a Study returns: values in Python, text for print, HTML for a notebook."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from depthmup_flax.report.loss_surfaces import LOSSES
from depthmup_flax.report.sweep_report import Report, make_report
from depthmup_flax.report.yardstick import TOLERANCE
from depthmup_flax.search.tune.choice import Advice, Choice, describe
from depthmup_flax.storage.files import as_path
from depthmup_flax.storage.records import LOSS_FIELDS, TRAIN, short_names
from depthmup_flax.util.table import Table, notebook_html

_SHOWN_RUNS = 10
_NOT_SHOWN = ("run", "train_loss", "train_loss_slices", "wall_time_s", "lanes", "parameters", "commit")
# What to type in Python after a search.
ADVICE = Advice("Add values beyond it to the grid.", "use seeds=3")


@dataclasses.dataclass(frozen=True, repr=False)
class Swept:
    """The runs of `Study.sweep`.

    Attributes:
      records: a flat dictionary for each run, see `depthmup_flax.storage.records.flat`.
      directory: that holds them.
      objective: the loss by which they are compared.
    """

    records: list[dict[str, Any]]
    directory: pathlib.Path
    objective: str = TRAIN

    def report(
        self, out: str | os.PathLike[str] | None = None, *, tolerance: float = TOLERANCE, loss: str | None = None
    ) -> Report:
        """The verdict, tables and figures of all runs in `directory`; a notebook shows them, print gives the text.

        Args:
          out: directory for the files, by default ``report`` in `directory`.
          tolerance, loss: see `depthmup_flax.report.make_report`.
        """
        place = self.directory / "report" if out is None else as_path(out)
        return make_report([self.directory], place, tolerance=tolerance, loss=loss)

    def __repr__(self) -> str:
        return f"{len(self.records)} runs in {str(self.directory)!r}; .report() analyzes them, .records holds them"

    def _repr_html_(self) -> str:
        """The best runs, with what differs between runs."""
        if not self.records:
            return notebook_html(repr(self))
        field = LOSS_FIELDS[self.objective]
        loss = lambda record: math.inf if record[field] is None else record[field]
        best = sorted(self.records, key=loss)[:_SHOWN_RUNS]
        values = {name: [record.get(name) for record in self.records] for name in self.records[0]}
        differing = [name for name, of_runs in values.items() if len(set(map(str, of_runs))) > 1]
        names = [name for name in differing if name not in _NOT_SHOWN]
        rows = [[record.get(name) for name in names] for record in best]
        lowest = f"The {len(best)} of the lowest {LOSSES[self.objective]}:" if len(best) < len(self.records) else ""
        return notebook_html(f"{self!r}\n{lowest}", Table(names, rows, ">" * len(names)))


class Best(Mapping[str, Any]):
    """The best hyperparameters of `Study.tune` by name, ``study.train(width=512, **best)``; print explains them.

    Attributes:
      interval: 95 % interval of the first of them, from resampled seeds; ``None`` where it is not known.
      records: of all runs of the search, see `Swept`.
    """

    def __init__(self, choice: Choice, proxy: ConfigDict, swept: Swept) -> None:
        self._choice, self._proxy, self._swept = choice, proxy, swept
        names = short_names(choice.values)
        self._values = {names[path]: rounded(value) for path, value in choice.values.items()}
        self.interval = choice.interval
        self.records, self.directory = swept.records, swept.directory

    def report(self, out: str | os.PathLike[str] | None = None, *, loss: str | None = None) -> Report:
        """See `Swept.report`."""
        return self._swept.report(out, loss=loss)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return describe(self._choice, self._proxy, ADVICE)


def rounded(value: Any) -> Any:
    """A float with the four digits that are shown."""
    return float(f"{value:.4g}") if isinstance(value, float) else value

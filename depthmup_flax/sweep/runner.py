"""Runs a sweep: group after group, chunk after chunk, records as they come; goes on where an earlier call ended."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict
from tqdm import tqdm

from depthmup_flax.data import Dataset, LoadOnce
from depthmup_flax.errors import InputError
from depthmup_flax.files import write_atomically
from depthmup_flax.parallel.preemption import Preemption
from depthmup_flax.provenance import commit, versions
from depthmup_flax.records import DIVERGED, Record, RecordWriter, SweepInfo, info_to_json, read_info, read_records
from depthmup_flax.rule.optimizer import warmup_schedule
from depthmup_flax.sweep.extension import extension
from depthmup_flax.sweep.grid import Run, expand, shard_of, structural_groups, sweep_info
from depthmup_flax.sweep.lane_count import choose
from depthmup_flax.sweep.lane_layout import chunks, one_seed_fits
from depthmup_flax.sweep.program import Chunk, Outcome, Program, put_data, sweep_mesh, train_chunk, varying_fields
from depthmup_flax.sweep.unfinished import Keeper
from depthmup_flax.training.config import differences, listed, run_differences
from depthmup_flax.training.experiment import Experiment, build
from depthmup_flax.training.workdir import make_writable, only_run_in, writing_to

_SAY_EVERY_S = 5.0  # between lines of progress


@dataclasses.dataclass
class Group:
    """Runs that share a compiled program.

    Attributes:
      experiment: of the first of them.
      runs: those of this shard.
      label: the structural values, for people.
    """

    experiment: Experiment
    runs: list[Run]
    label: str


def plan(config: ConfigDict, runs: Sequence[Run], load: LoadOnce) -> list[Group]:
    """Builds every group's experiment, so that whatever is wrong with one is said before any of them trains.

    Raises:
      InputError: from `depthmup_flax.training.experiment.build`, with the group's values.
    """
    structural = [path for path, values in sweep_info(config).axes.items() if len(values) > 1]
    groups = []
    for group_runs in structural_groups(runs):
        first = group_runs[0]
        group_varies = varying_fields(group_runs)
        values = {path: first.point[path] for path in structural if path not in group_varies and path != "seed"}
        label = ", ".join(f"{path.rpartition('.')[2]} {value}" for path, value in values.items()) or "all runs"
        try:
            experiment = build(first.config, load=load)
            for run in group_runs:
                optimizer = run.config.optimizer
                warmup_schedule(optimizer.schedule, optimizer.warmup_steps, experiment.total_steps)
        except InputError as error:
            raise InputError(f"in the runs with {label}: {error}") from error
        groups.append(Group(experiment, group_runs, label))
    return groups


def sweep(
    config: ConfigDict,
    workdir: str | pathlib.Path,
    *,
    shard: tuple[int, int] = (0, 1),
    lanes: int | None = None,
    overwrite: bool = False,
    load: LoadOnce | None = None,
    keep_every_s: float = 600.0,
) -> list[Record]:
    """Trains every run of a sweep that ``workdir`` does not hold yet; returns the records of this shard.

    Writes ``sweep.json`` and appends to ``records.jsonl`` (or ``records.<i>-of-<n>.jsonl``); see
    `depthmup_flax.records`. A run is recorded when it ends. The state of runs in training is kept in ``unfinished/``
    every ``keep_every_s`` seconds, and when SIGTERM or Ctrl-C asks to leave; a later call goes on from there.

    Args:
      config: from `depthmup_flax.sweep.grid.sweep_config`.
      workdir: created if absent.
      shard: ``(i, n)``: the i-th of n disjoint parts, from 0.
      lanes: runs at the same time on each device; 0: all of a group, ``None``: measured for each group.
      overwrite: delete the sweep that ``workdir`` holds; with a shard, that shard's records alone.
      load: shared with a caller that uses the same data.
      keep_every_s: seconds.

    Raises:
      InputError: bad configuration or work directory, before anything is trained or overwritten.
      Preempted: the process was asked to leave.
      RunStopped: the work directory cannot be written any more.
    """
    load = load or LoadOnce()
    groups = _shard_of_groups(config, plan(config, expand(config), load), shard)
    directory = pathlib.Path(workdir)
    path = directory / ("records.jsonl" if shard[1] == 1 else f"records.{shard[0]}-of-{shard[1]}.jsonl")
    info = sweep_info(config)
    unfinished = directory / "unfinished" / path.stem
    opened = _opened(directory, path, info, overwrite)
    with opened, writing_to(directory), Preemption() as preemption:
        if overwrite:
            shutil.rmtree(unfinished if shard[1] > 1 else unfinished.parent, ignore_errors=True)
        writer = RecordWriter(path)  # mends a torn last line, so before reading
        # Runs of any shard are done; those of another sharding of the same sweep are, too.
        done: dict[str, Record] = {}
        for other in sorted(directory.glob("records*.jsonl")):
            done.update({record.run: record for record in read_records(other)[0]})
        try:
            keeper = Keeper(unfinished, keep_every_s, preemption)
            runner = _Runner(config, writer, done, lanes, load, keeper)
            runner.run(groups)
        finally:
            writer.close()
        return [record for record in runner.done.values() if record.run in runner.mine]


def _shard_of_groups(config: ConfigDict, groups: Sequence[Group], shard: tuple[int, int]) -> list[Group]:
    """Every group with its runs of this shard; groups without any are left out."""
    runs = [run for group in groups for run in group.runs]
    cost = {run.hash: group.experiment.cost for group in groups for run in group.runs}
    mine = {run.hash for run in shard_of(runs, config.x, shard, cost)}
    of_shard = [dataclasses.replace(group, runs=[run for run in group.runs if run.hash in mine]) for group in groups]
    return [group for group in of_shard if group.runs]


class _Runner:
    def __init__(
        self,
        config: ConfigDict,
        writer: RecordWriter,
        done: dict[str, Record],
        lanes: int | None,
        load: LoadOnce,
        keeper: Keeper,
    ) -> None:
        self._keeper = keeper
        self._config, self._writer, self.done, self._lanes, self._load = config, writer, done, lanes, load
        self._programs = _Programs(sweep_mesh())
        self._versions, self._commit = versions(), commit()
        self._hint = 1
        self.mine: set[str] = set()
        self._progress: _Progress | None = None

    def run(self, groups: Sequence[Group]) -> None:
        """All groups; then, while it may, values beyond the ends of the grid where a minimum lies there."""
        everything = [run for group in groups for run in group.runs]
        self.mine |= {run.hash for run in everything}
        self._progress = _Progress(groups, self.done)
        # What was in training first: another group would take its place.
        kept = self._keeper.kept_runs()
        for group in sorted(groups, key=lambda group: not any(run.hash in kept for run in group.runs)):
            self._run_group(group)
        for _ in range(self._config.extend):
            curves = extension(self._config, everything, self.done)
            more = [run for runs, _ in curves for run in runs if run.hash not in self.mine]
            if not more:
                break
            for runs, sentence in curves:
                if any(run.hash not in self.done for run in runs):
                    print(sentence, flush=True)
            everything += more
            self.mine |= {run.hash for run in more}
            extended = plan(self._config, more, self._load)
            self._progress.add(extended, self.done)
            for group in extended:
                self._run_group(group)
        self._keeper.forget()
        self._progress.finish()

    def _run_group(self, group: Group) -> None:
        assert self._progress is not None
        runs = [run for run in group.runs if run.hash not in self.done]
        if not runs:
            return
        make, devices = self._programs.of(group), self._programs.mesh.size
        unfinished = self._keeper.resumed(runs, make.program)
        if unfinished is not None:
            self._progress.resumes(group, unfinished)
            self._train(group, unfinished, lambda alive: None)
            runs = [run for run in runs if run.hash not in self.done]
            if not runs:
                return
        program, seconds = choose(make.for_runs(runs), runs, devices, self._lanes, self._hint)
        self._hint = program.per_device
        self._progress.group(group, len(runs), program, seconds)

        def shrink(alive: list[Run]) -> Program | None:
            fewer = math.ceil(len(alive) / devices)
            one_seed = one_seed_fits(alive, fewer, devices)
            saved = (program.capacity - fewer * devices) * group.experiment.total_steps * seconds / 2
            worth = saved > 2 * program.compile_s or make.has(fewer, one_seed)
            return make.program(fewer, one_seed) if worth and fewer < program.per_device else None

        self._keeper.forget()
        parts = chunks(runs, program.per_device, devices)
        for part in parts:
            self._train(group, program.begin(part), shrink, last=part is parts[-1])

    def _train(
        self, group: Group, chunk: Chunk, shrink: Callable[[list[Run]], Program | None], *, last: bool = False
    ) -> None:
        assert self._progress is not None
        program = chunk.program
        outcomes = train_chunk(chunk, shrink, self._keeper.after_step)
        share = chunk.elapsed_s() / len(chunk.runs)
        records = [self._record(group, run, out, program, share) for run, out in zip(chunk.runs, outcomes, strict=True)]
        self._writer.write_records(records)
        self._keeper.forget()
        self.done.update({record.run: record for record in records})
        self._progress.update(group, records, last=last)

    def _record(self, group: Group, run: Run, outcome: Outcome, program: Program, seconds: float) -> Record:
        device = jax.devices()[0]
        return Record(
            run=run.hash,
            point=run.point,
            width=run.config.model.width,
            depth=run.config.model.depth,
            parameters=group.experiment.parameters,
            seed=run.config.seed,
            slice_steps=program.slice_steps,
            wall_time_s=round(seconds, 3),
            lanes=program.per_device,
            device=f"{jax.device_count()} x {device.device_kind}",
            versions=self._versions,
            commit=self._commit,
            **dataclasses.asdict(outcome),
        )


class _Programs:
    """Compiles groups' programs, with the training data of the last group kept on the devices for the next."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._dataset: Dataset | None = None
        self._data: Any = None

    def of(self, group: Group) -> _Maker:
        """The group's maker; its programs depend on the whole group, so that they are the same after a restart."""
        dataset = group.experiment.dataset
        if dataset is not self._dataset:
            self._dataset, self._data = dataset, put_data(dataset, self.mesh)
        return _Maker(group, self.mesh, self._data)


class _Maker:
    """Compiles programs of a group, each once."""

    def __init__(self, group: Group, mesh: Mesh, data: Any) -> None:
        self._group, self._mesh, self._data = group, mesh, data
        self._seeds = len({run.config.seed for run in group.runs})
        self._made: dict[tuple[int, bool], Program] = {}

    def has(self, per_device: int, one_seed: bool) -> bool:
        """Whether that program is compiled already."""
        return (per_device, one_seed) in self._made

    def program(self, per_device: int, one_seed: bool) -> Program:
        """With so many lanes on each device, of one seed or of any."""
        if not self.has(per_device, one_seed):
            fields = varying_fields(self._group.runs)
            self._made[per_device, one_seed] = Program(
                self._group.experiment, fields, self._mesh, per_device, one_seed, self._seeds, self._data
            )
        return self._made[per_device, one_seed]

    def for_runs(self, runs: Sequence[Run]) -> Callable[[int], Program]:
        """Lanes per device -> a program that serves all of ``runs``, part after part, and the whole group."""
        devices = self._mesh.size

        def make(per_device: int) -> Program:
            # The whole group, so that what is left of it after a restart gets the same program.
            parts = [*chunks(self._group.runs, per_device, devices), *chunks(runs, per_device, devices)]
            return self.program(per_device, all(one_seed_fits(part, per_device, devices) for part in parts))

        return make


class _Progress:
    """Runs done, failed, time taken and time left, for the whole grid; time left is by parameters times steps."""

    def __init__(self, groups: Sequence[Group], done: dict[str, Record]) -> None:
        left = [sum(run.hash not in done for run in group.runs) for group in groups]
        self._total = sum(len(group.runs) for group in groups)
        self._finished = self._total - sum(left)
        self._cost_left = sum(n * group.experiment.cost for n, group in zip(left, groups, strict=True))
        self._cost_done = 0.0
        self._diverged, self._best = 0, math.inf  # the best loss of the group
        self._started = self._said = time.perf_counter()
        already = f", {self._finished} of them done before" if self._finished else ""
        print(f"{self._total} runs in {len(groups)} compiled groups{already}", flush=True)

    def add(self, groups: Sequence[Group], done: dict[str, Record]) -> None:
        left = [sum(run.hash not in done for run in group.runs) for group in groups]
        runs = sum(len(group.runs) for group in groups)
        self._total += runs
        self._finished += runs - sum(left)
        self._cost_left += sum(n * group.experiment.cost for n, group in zip(left, groups, strict=True))

    def group(self, group: Group, runs: int, program: Program, seconds: float) -> None:
        self._best = math.inf
        devices = f" on each of {program.mesh.size} devices" if program.mesh.size > 1 else ""
        experiment = group.experiment
        print(
            f"{group.label}: {runs} runs of {experiment.total_steps} steps, {experiment.parameters:,} parameters; "
            f"{program.per_device} at a time{devices}, {1e3 * seconds:.3g} ms per run and step",
            flush=True,
        )

    def resumes(self, group: Group, chunk: Chunk) -> None:
        print(f"{group.label}: {len(chunk.runs)} runs go on after step {chunk.step}", flush=True)

    def update(self, group: Group, records: Sequence[Record], *, last: bool) -> None:
        self._finished += len(records)
        self._diverged += sum(record.status == DIVERGED for record in records)
        self._cost_done += len(records) * group.experiment.cost
        self._cost_left -= len(records) * group.experiment.cost
        losses = [record.train_loss_avg for record in records if record.status != DIVERGED]
        self._best = min([self._best, *(loss for loss in losses if loss is not None)])
        now = time.perf_counter()
        if now < self._said + _SAY_EVERY_S and not last:
            return
        self._said, elapsed = now, now - self._started
        left = elapsed * self._cost_left / self._cost_done
        best = f"{self._best:.5g}" if math.isfinite(self._best) else "-"
        print(
            f"  runs {self._finished}/{self._total}  diverged {self._diverged}  best loss {best}  "
            f"elapsed {tqdm.format_interval(elapsed)}  ETA {tqdm.format_interval(max(left, 0.0))}",
            flush=True,
        )

    def finish(self) -> None:
        elapsed = time.perf_counter() - self._started
        print(f"{self._finished} runs, {self._diverged} diverged now, {tqdm.format_interval(elapsed)}", flush=True)


def describe(config: ConfigDict, lanes: int | None = None, shard: tuple[int, int] = (0, 1)) -> str:
    """What ``--dry_run`` prints: axes, runs, parameters, and a time from measuring the smallest and largest network."""
    groups = _shard_of_groups(config, plan(config, expand(config), LoadOnce()), shard)
    groups.sort(key=lambda group: group.experiment.cost)
    runs = [run for group in groups for run in group.runs]
    info = sweep_info(config)
    lines = [f"{info.figure} ({info.scale}): {info.title}", ""]
    lines += [f"  {path:<36} {', '.join(_short(value) for value in values)}" for path, values in info.axes.items()]
    part = f" in shard {shard[0]}/{shard[1]}" if shard[1] > 1 else ""
    lines += ["", f"{len(runs)} runs in {len(groups)} compiled groups{part}:"]
    if not groups:
        return "\n".join(lines)
    lines += [
        f"  {len(g.runs):>5} x {g.experiment.total_steps} steps, {g.experiment.parameters:>13,} parameters: {g.label}"
        for g in groups
    ]
    programs = _Programs(sweep_mesh())
    measured: list[tuple[float, float]] = []  # cost of a run, its seconds
    for group in dict.fromkeys((0, len(groups) - 1)):
        chosen = groups[group]
        make = programs.of(chosen).for_runs(chosen.runs)
        program, seconds = choose(make, chosen.runs, programs.mesh.size, lanes)
        measured.append((chosen.experiment.cost, seconds * chosen.experiment.total_steps))
        lines.append(
            f"measured: {chosen.label}: {1e3 * seconds:.3g} ms per run and step, {program.per_device} at a time on "
            f"{programs.mesh.size} device(s), {program.bytes_per_device / 2**20:,.0f} MiB on each"
        )
    total = sum(len(group.runs) * _interpolated(group.experiment.cost, measured) for group in groups)
    lines.append(f"about {tqdm.format_interval(total)} without compilation and evaluation")
    return "\n".join(lines)


def _interpolated(cost: float, measured: Sequence[tuple[float, float]]) -> float:
    """Seconds of a run by a power law through the measured ones."""
    (low, low_s), (high, high_s) = measured[0], measured[-1]
    if low == high:
        return low_s
    power = math.log(high_s / low_s) / math.log(high / low)
    return low_s * (cost / low) ** power


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def _opened(directory: pathlib.Path, path: pathlib.Path, info: SweepInfo, overwrite: bool) -> Iterator[None]:
    """The directory with its ``sweep.json``, locked for this shard."""
    make_writable(directory)
    with only_run_in(directory, f".lock-{path.stem}"):
        if overwrite:
            whole = path.name == "records.jsonl"  # other shards may be running
            for old in [*directory.glob("records*.jsonl"), directory / "sweep.json"] if whole else [path]:
                old.unlink(missing_ok=True)
        if (directory / "sweep.json").exists():
            _require_same_sweep(directory, info)
        else:
            if any(directory.glob("records*.jsonl")):
                raise InputError(f"{str(directory)!r} holds records without sweep.json: choose another workdir.")
            write_atomically(directory / "sweep.json", info_to_json(info))
        yield


def _require_same_sweep(directory: pathlib.Path, info: SweepInfo) -> None:
    stored = read_info(directory)
    # Time slices of the same length, so that one figure can show them all.
    length, ours = (sweep.base.get("train", {}).get("log_every") for sweep in (stored, info))
    found = [f"base.{difference}" for difference in run_differences(stored.base, info.base)]
    found += differences(length, ours, "base.train.log_every")
    for name in ("figure", "scale", "x"):
        found += differences(getattr(stored, name), getattr(info, name), name)
    if stored.axes.keys() != info.axes.keys():
        found.append(f"axes: {', '.join(stored.axes)} there, {', '.join(info.axes)} here")
    if found:
        raise InputError(
            f"workdir {str(directory)!r} holds another sweep ({listed(found)}): choose another directory, or pass "
            "--overwrite, without --shard, to delete that sweep's records. (More values on the same axes are welcome.)"
        )

"""Runs a sweep, group by group and cohort by cohort; writes records as runs end, and resumes."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import json
import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from depthmup_flax.config.fields import ANOTHER, code_version, make_parametrization
from depthmup_flax.config.hyperparameters import RULE, hyperparameters
from depthmup_flax.data import Dataset, LoadOnce, stored_dataset
from depthmup_flax.data.dataset import chance_loss
from depthmup_flax.devices import sharding
from depthmup_flax.devices.preemption import Preemption
from depthmup_flax.search.sweep.grid import Run, expand, extension, structure, sweep_info
from depthmup_flax.search.sweep.groups import Group, groups_of_shard, plan
from depthmup_flax.search.sweep.lane_choice import GroupPrograms, choose_program, serves
from depthmup_flax.search.sweep.progress import SweepProgress
from depthmup_flax.search.sweep.unfinished import Unfinished
from depthmup_flax.storage import sweep_records
from depthmup_flax.storage import workdir as workdirs
from depthmup_flax.storage.files import JsonLines, create, delete_tree, read_json, write_atomically
from depthmup_flax.storage.provenance import commit, versions
from depthmup_flax.storage.run_hash import json_text, without_execution
from depthmup_flax.storage.sweep_records import Record
from depthmup_flax.trainer.engine import identity
from depthmup_flax.trainer.engine.device_batches import put_train_data
from depthmup_flax.trainer.engine.lanes import Cohort, LaneProgram, cohorts, lane_mesh, train
from depthmup_flax.util.errors import InputError, listed
from depthmup_flax.util.surroundings import own_surroundings
from depthmup_flax.util.types import Batch, Json

log = logging.getLogger(__name__)

_WHOLE = "records.jsonl"  # of a sweep without shards

_DATA = "data.json"
_FORGET_EVERY = 8  # groups

# The config of a sweep, its runs and hash -> record of those that are done -> further runs, each with a sentence.
More: TypeAlias = Callable[[ConfigDict, Sequence[Run], Mapping[str, Record]], list[tuple[list[Run], str]]]
# Gets each record as a flat dictionary, see `depthmup_flax.storage.sweep_records.flat`.
OnRecord: TypeAlias = Callable[[Mapping[str, Any]], Any]


@own_surroundings()
def sweep(
    config: ConfigDict,
    workdir: str | pathlib.Path,
    *,
    shard: tuple[int, int] = (0, 1),
    lanes: int | None = None,
    overwrite: bool = False,
    load: LoadOnce | None = None,
    keep_every_s: float = 600.0,
    kind: str = workdirs.SWEEP,
    on_record: OnRecord | None = None,
    more: More = extension,
) -> list[Record]:
    """Trains every run of a sweep that ``workdir`` does not hold yet; returns the records of this shard.

    Writes ``sweep.json`` and appends to ``records.jsonl`` (or ``records.<i>-of-<n>.jsonl``) when a run ends; see
    `storage.sweep_records`. The state of runs in training is saved in ``unfinished/`` every ``keep_every_s``
    seconds and on SIGTERM or Ctrl-C; a later call resumes from it.

    Args:
      config: from `depthmup_flax.search.sweep.grid.sweep_config`.
      workdir: created if absent.
      shard: ``(i, n)``: the i-th of n disjoint parts, from 0.
      lanes: runs trained together on each device; 0: all of a group, ``None``: by the work of a step and the memory.
      overwrite: delete the sweep that ``workdir`` holds; with a shard, only the records of that shard.
      load: shared with a caller that uses the same data.
      keep_every_s: seconds.
      kind: of work that ``workdir`` holds; a search for hyperparameters is a sweep with more files.
      on_record: called with each new record after it is written, such as ``wandb.log``. If it fails, the sweep warns
        and does not call it again.
      more: gives the runs to add once all others are done, up to ``config.extend`` times.

    Raises:
      InputError: bad configuration or work directory, before anything is trained or overwritten.
      Preempted: the process was preempted, and its state is saved.
      RunStopped: the work directory cannot be written.
    """
    if not 0 <= shard[0] < shard[1]:
        raise InputError(f"shard is {shard!r}: use (i, n) with i from 0 to n - 1, such as (0, 4).")
    impl = str(jax.config.jax_default_prng_impl)  # type: ignore[attr-defined]
    if "rbg" in impl and lanes != 1:
        raise InputError(f"jax_default_prng_impl is {impl!r}, whose numbers depend on lanes: use lanes=1 or threefry.")
    load = load or LoadOnce()
    runs = expand(config)
    planned = plan(config, runs, load)
    groups = groups_of_shard(config, planned, shard)
    name = "records" if shard[1] == 1 else f"records.{shard[0]}-of-{shard[1]}"
    with workdirs.claimed(workdir, kind, lock=f".lock-{name}") as claim, Preemption() as preemption:
        directory = claim.workdir
        path, unfinished = directory / f"{name}.jsonl", directory / "unfinished" / name
        if overwrite and path.name == _WHOLE:
            claim.require_alone()
        if overwrite:
            _delete(path, unfinished)
        info = dataclasses.replace(sweep_info(config), runs=len(runs))
        first = planned[0].experiment
        classifies = first.network is not None and first.config.loss == "cross_entropy"
        if classifies and not (directory / "sweep.json").exists():  # it may read thousands of examples
            info = dataclasses.replace(info, chance=chance_loss(first.dataset))
        programs = _programs(planned, config.base)
        stored = _require_same_sweep(directory, info, kind, programs)
        _require_same_data(directory, planned)
        holds = f"workdir {str(directory)!r} holds a sweep"
        identity.require_same(directory, programs, holds, compare=not config.base.train.same_code)
        with contextlib.closing(JsonLines(path)) as writer:  # repairs a torn last line, so before reading
            # Runs that any shard, or another sharding of the same sweep, has recorded are done.
            done, notes = sweep_records.read_runs([(directory, stored)])
            for note in notes:
                log.warning("%s", note)
            saved = Unfinished(unfinished, keep_every_s, preemption)
            runner = _Runner(config, claim, writer, done, lanes, load, saved, more, on_record)
            runner.run(groups)
        return [record for record in runner.done.values() if record.run in runner.mine]


@dataclasses.dataclass
class _Runner:
    """Trains groups of runs and records them."""

    config: ConfigDict
    claim: workdirs.Claim
    writer: JsonLines
    done: dict[str, Record]  # hash of a run -> its record, for all shards
    lanes: int | None
    load: LoadOnce
    unfinished: Unfinished
    more: More
    on_record: OnRecord | None = None
    mine: set[str] = dataclasses.field(default_factory=set)  # hashes of the runs of this shard
    mesh: Mesh = dataclasses.field(default_factory=lane_mesh)
    dataset: Dataset | None = None  # of the last group
    data: Batch | None = None  # of that set, on the devices
    commit: str | None = dataclasses.field(default_factory=commit)
    progress: SweepProgress = dataclasses.field(init=False)
    versions: dict[str, str] = dataclasses.field(init=False)  # of packages and the user's modules
    groups_trained: int = 0
    # Structure -> the groups in whose programs this and later groups train.
    owners: dict[str, list[Group]] = dataclasses.field(default_factory=dict)
    programs: GroupPrograms | None = None  # of the last group
    # The programs of the next group, which a thread compiles: XLA does not hold Python's lock.
    compiler: ThreadPoolExecutor = dataclasses.field(default_factory=lambda: ThreadPoolExecutor(1))
    ahead: tuple[GroupPrograms, Future[LaneProgram]] | None = None

    def run(self, groups: Sequence[Group]) -> None:
        """Trains all groups; then, up to ``config.extend`` times, what `more` adds."""
        runs = [run for group in groups for run in group.runs]
        self.versions = versions() | code_version(self.config.base)
        self.mine |= {run.hash for run in runs}
        self.progress = SweepProgress(groups, self.done)
        try:
            self._run(groups, runs)
        finally:
            self.progress.close()
            self.compiler.shutdown(wait=False, cancel_futures=True)  # the process ends after a compilation in progress
        self.unfinished.close(self.done.keys())
        self.progress.finish()

    def _run(self, groups: Sequence[Group], runs: list[Run]) -> None:
        # First the runs whose state is saved: another group would overwrite it.
        saved = self.unfinished.saved_runs()
        self._run_groups(sorted(groups, key=lambda group: not any(run.hash in saved for run in group.runs)))
        for _ in range(self.config.extend):
            added = self.more(self.config, runs, self.done)
            more = [run for part, _ in added for run in part if run.hash not in self.mine]
            if not more:
                break
            for part, sentence in added:
                if any(run.hash not in self.done for run in part):
                    log.info("%s", sentence)
            runs += more
            self.mine |= {run.hash for run in more}
            extended = plan(self.config, more, self.load)
            self.progress.add(extended, self.done)
            self._run_groups(extended)

    def _run_groups(self, groups: Sequence[Group]) -> None:
        for group in groups:
            self._owner(group)
        left = [group for group in groups if self._left(group)]
        for group, following in itertools.zip_longest(left, left[1:]):
            self._train_group(group, following)

    def _train_group(self, group: Group, following: Group | None) -> None:
        runs = self._left(group)
        programs = self._programs(group)
        resumed = self.unfinished.restore(runs, programs.get)
        if resumed is not None:
            log.info("%s: %d runs resume after step %d", group.label, len(resumed.runs), resumed.step)
            self._train(group, resumed)
            if not (runs := self._left(group)):
                return
        program = choose_program(programs, runs, self.lanes)
        self.progress.start(group, len(runs), program)
        self.unfinished.delete()
        if following is not None and self._compiles_ahead(following):
            ahead, choose = GroupPrograms(following, self.mesh, self.data), own_surroundings()(choose_program)
            self.ahead = ahead, self.compiler.submit(choose, ahead, self._left(following), self.lanes)
        for part in cohorts(runs, program.per_device, self.mesh.size):
            self._train(group, Cohort.of(program, part))

    def _programs(self, group: Group) -> GroupPrograms:
        """Those of ``group``, compiled ahead or not at all; raises what the thread raised."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            ahead[1].result()
        self.groups_trained += 1
        if self.groups_trained % _FORGET_EVERY == 0:
            # JAX caches what it traced, 4 MB for each group of tiny networks, and no later group uses it.
            jax.clear_caches()
            gc.collect()
        if self.dataset is not group.experiment.dataset:
            self.dataset, self.data, self.programs = group.experiment.dataset, None, None  # frees the memory first
            self.data = put_train_data(self.dataset, self.mesh)
        owner = self._owner(group)
        if ahead is not None:
            self.programs = ahead[0]
        elif self.programs is None or self.programs.group is not owner:
            self.programs = GroupPrograms(owner, self.mesh, self.data)
        return self.programs

    def _owner(self, group: Group) -> Group:
        """The group in whose programs ``group`` trains: an earlier one of its structure that serves, or itself.

        Asked of all groups in their order, also of those that an earlier process has recorded: which program trains a
        run, and so how it rounds, does not depend on interruptions.
        """
        owners = self.owners.setdefault(structure(group.runs[0]), [])
        for owner in owners:
            if owner is group or serves(owner, group, self.mesh, self.lanes):
                return owner
        owners.append(group)
        return group

    def _compiles_ahead(self, group: Group) -> bool:
        own = self._owner(group) is group
        return own and _pays_ahead(self.mesh) and group.experiment.dataset is self.dataset

    def _after_call(self, cohort: Cohort) -> None:
        self.claim.check()
        self.progress.show()
        self.unfinished.after_call(cohort)

    def _left(self, group: Group) -> list[Run]:
        return [run for run in group.runs if run.hash not in self.done]

    def _train(self, group: Group, cohort: Cohort) -> None:
        """Trains ``cohort`` and writes its records."""
        self.progress.train(cohort)
        outcomes = train(cohort, self._after_call)
        runs: Sequence[Any] = cohort.runs  # each a `Run`
        seconds = round(cohort.elapsed_s() / len(cohort.runs), 3)
        records = [
            Record(
                run=run.hash,
                point=run.point,
                width=run.config.model.width,
                depth=run.config.model.depth,
                parameters=group.experiment.parameters,
                seed=run.config.seed,
                slice_steps=group.experiment.config.train.log_every,
                train_loss_slices=cohort.slices[run.hash],
                wall_time_s=seconds,
                lanes=cohort.program.per_device,
                device=f"{jax.device_count()} x {jax.devices()[0].device_kind}",
                versions=self.versions,
                audit=group.experiment.audit(make_parametrization(run.config)),
                commit=self.commit,
                **outcome,
            )
            for run, outcome in zip(runs, outcomes, strict=True)
        ]
        self.claim.check()
        self.writer.write(map(dataclasses.asdict, records))
        self.unfinished.delete()
        self.done.update({record.run: record for record in records})
        self.progress.update(records)
        self._tell(records)

    def _tell(self, records: Sequence[Record]) -> None:
        """Passes new records to `on_record`, whose failure must not cost the runs."""
        if self.on_record is None:
            return
        try:
            for record in records:
                self.on_record(sweep_records.flat(record))
        except Exception:
            log.warning("on_record failed and is not called again; all records are written", exc_info=True)
            self.on_record = None


def _pays_ahead(mesh: Mesh) -> bool:
    """Whether to compile while a group trains: on a CPU it would take the cores from the training."""
    return sharding.platform(mesh) != "cpu"


def _delete(path: pathlib.Path, unfinished: pathlib.Path) -> None:
    """Deletes the records of a shard and its runs in training; of the whole sweep, if ``path`` is not a shard's."""
    directory, parts = path.parent, [path]
    if path.name == _WHOLE:
        names = ("sweep.json", _DATA, identity.FILE, "tuned.py")
        parts = [*directory.glob("records*.jsonl*"), *(directory / name for name in names)]
        unfinished = unfinished.parent
    for old in parts:
        old.unlink(missing_ok=True)
    delete_tree(unfinished)


def _require_same_data(directory: pathlib.Path, groups: Sequence[Group]) -> None:
    """Writes ``data.json``, fields of ``config.data`` -> a description, or checks data that are described there."""
    path = directory / _DATA
    stored = read_json(path, "restore it, or set overwrite to delete the sweep") if path.exists() else {}
    described: dict[str, Dataset] = {}
    for group in groups:
        fields = without_execution({"data": group.experiment.config.data.to_dict()})["data"]
        described.setdefault(json.dumps(fields, sort_keys=True), group.experiment.dataset)
    now = {name: stored_dataset.to_json(dataset) for name, dataset in described.items()}
    for name in stored.keys() & now.keys():
        stored_dataset.require_same(stored[name], now[name], f"the sweep in {str(directory)!r}")
    if now.keys() - stored.keys():
        write_atomically(path, json_text(stored | now))


def _programs(groups: Sequence[Group], base: ConfigDict) -> Json:
    """`identity.programs` of all groups."""
    now: Json = {}
    of_rules = any(path.startswith(f"{RULE}.") for group in groups for path in group.runs[0].point)
    for group in groups:
        own, values = group.experiment.hyperparameters, hyperparameters(base)
        others = {name: own[name] for name in own.keys() - values.keys()}  # of a run that other calls may not have
        which = f"{structure(group.runs[0])} {json.dumps(others, sort_keys=True)}"
        now |= identity.programs(group.experiment, values, which, of_rules=of_rules)
    return now


def _require_same_sweep(
    directory: pathlib.Path, info: sweep_records.SweepInfo, kind: str, programs: Json
) -> sweep_records.SweepInfo:
    """Writes ``sweep.json``, or checks that the one there is of the same sweep; returns its content."""
    path = directory / "sweep.json"
    recorded = any(directory.glob("records*.jsonl*"))  # if so, their sweep.json is older
    if not recorded:
        create(path, sweep_records.info_to_json(info))
    stored = sweep_records.read_info(directory)
    changed = identity.code_differences(directory, stored.base, info.base, programs)
    if changed := changed + sweep_records.sweep_differences(stored, info):
        raise InputError(
            f"workdir {str(directory)!r} holds another {kind} ({listed(changed)}): {ANOTHER} You may add values to the "
            "existing axes of a sweep."
        )
    return stored

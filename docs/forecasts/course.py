"""How often the course of a forecast gives false alarms, and how soon it notices faults; writes tables and two figures.

    python docs/forecasts/course.py [DIRECTORY]      records: DIRECTORY/course_NAME-cpu, by default docs/reproduction

Ladders have three consecutive seeds, and each of the 24 first seeds is a ladder. A target of a ladder's first seed is
watched with it (``own``), and those of seeds that the ladder does not have (``other``).
"""

import dataclasses
import pathlib
import statistics
import sys
from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
from course_runs import FAMILIES, FAULT_SEEDS, SEEDS, faults, get_config

from depthmup_flax.search.forecast.course import Course, Curves, Watch, course_of, log_steps
from depthmup_flax.search.forecast.law import Rung
from depthmup_flax.storage.records.table import LEARNING_RATE, Record, read_sweep

HERE = pathlib.Path(__file__).parent
LADDER_SEEDS, THIRD = 3, 1 / 3
Courses = Mapping[tuple[str, Rung, int], Course]  # family, target, first seed of the ladder


@dataclasses.dataclass(frozen=True)
class Family:
    """The records of a family: curves [S, T] of sizes, and of faults of the first target, and its test losses."""

    name: str
    healthy: Mapping[Rung, Curves]
    faulty: Mapping[str, Curves]
    test_loss: Mapping[str, float]  # mean over seeds, by fault; of healthy ones: ""
    rungs: list[Rung]
    targets: list[Rung]

    def course(self, target: Rung, first_seed: int) -> Course:
        """From a ladder of three seeds."""
        seeds = (first_seed + np.arange(LADDER_SEEDS)) % SEEDS
        ladder = {rung: Curves(self.healthy[rung].ends, self.healthy[rung].losses[seeds]) for rung in self.rungs}
        found = course_of(ladder, target, log_steps(10**9, target.steps))
        assert found is not None
        return found


def _curves(records: list[Record], steps: int) -> Curves:
    records = sorted(records, key=lambda record: record.seed)
    count = -(-steps // records[0].slice_steps)
    rows = [[np.nan if x is None else x for x in record.train_loss_slices] for record in records]
    losses = np.array([row + [np.nan] * (count - len(row)) for row in rows])
    return Curves(np.minimum(records[0].slice_steps * np.arange(1, count + 1) / steps, 1.0), losses)


def read_family(name: str, directory: pathlib.Path) -> Family:
    """The records of a family."""
    records = read_sweep([directory / f"course_{name}-cpu"]).records
    config = get_config(name)
    changed = faults(config.base, FAMILIES[name][1])
    fields = {path: config.base[path.split(".")[0]][path.split(".")[1]] for fault in changed.values() for path in fault}
    sizes = {}

    def chosen(size: tuple[int, int, int], values: Mapping[str, object]) -> list[Record]:
        own = [r for r in records if (r.width, r.depth, r.point.get("train.steps", size[2])) == size]
        rates = [r.point[LEARNING_RATE] for r in own]  # a rung with other steps has another one; few have a fault
        rate = {LEARNING_RATE: statistics.mode(rates)} if values is fields else {}
        return [r for r in own if all(r.point.get(k, v) == v for k, v in {**fields, **values, **rate}.items())]

    *_, rungs, targets = FAMILIES[name]
    healthy = {}
    for size in (*rungs, *targets):
        own = chosen(size, fields)
        rung = Rung(*size, own[0].parameters)
        sizes[size], healthy[rung] = rung, _curves(own, size[2])
    found = {fault: chosen(targets[0], values) for fault, values in changed.items()}
    faulty = {fault: _curves(runs, targets[0][2]) for fault, runs in found.items() if len(runs) == FAULT_SEEDS}
    mean = lambda runs: float(np.mean([np.inf if run.test_loss is None else run.test_loss for run in runs]))
    ends = {"": mean(chosen(targets[0], fields)), **{fault: mean(found[fault]) for fault in faulty}}
    return Family(name, healthy, faulty, ends, [sizes[size] for size in rungs], [sizes[size] for size in targets])


def alarm(course: Course, curves: Curves, seed: int) -> float:
    """The share of the run after which a seed's run leaves the band; infinite if it does not."""
    steps = np.round(curves.ends * course.ends[-1]).astype(int)
    watch = Watch(course)
    for step, loss in zip(steps, curves.losses[seed], strict=True):
        watch.update(int(step), float(loss))
    return np.inf if watch.left is None else watch.left / course.ends[-1]


def interval(count: int, of: int) -> str:
    """95 % interval of a share (Clopper and Pearson)."""
    from scipy.stats import beta

    low = beta.ppf(0.025, count, of - count + 1) if count else 0.0
    high = beta.ppf(0.975, count + 1, of - count) if count < of else 1.0
    return f"{count} of {of} ({count / of:.1%}; {low:.1%} to {high:.1%})"


def main() -> None:
    """Prints both tables and draws both figures."""
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE.parent / "reproduction"
    families = [read_family(name, directory) for name in FAMILIES]
    courses = {(f.name, t, s): f.course(t, s) for f in families for t in f.targets for s in range(SEEDS)}
    own = _false_alarms(families, courses)
    table = _detections(families, courses)
    _draw_courses(families, courses)
    _draw_alarms(families, own, table)


def _false_alarms(families: list[Family], courses: Courses) -> dict[tuple[str, Rung], list[float]]:
    """Prints a row for each target; returns the alarms of runs with a seed of their ladder."""
    print("| network | target | cost / largest rung's | a seed of the ladder | another seed |")
    print("| --- | --- | --- | --- | --- |")
    own, other = {}, {}
    count = lambda alarms: f"{np.isfinite(alarms).sum()} of {len(alarms)}"
    for family, target in [(one, target) for one in families for target in one.targets]:
        key, curves, others = (family.name, target), family.healthy[target], range(LADDER_SEEDS, SEEDS)
        own[key] = [alarm(courses[*key, s], curves, s) for s in range(SEEDS)]
        other[key] = [alarm(courses[*key, s], curves, (s + k) % SEEDS) for s in range(SEEDS) for k in others]
        ratio = target.cost / max(rung.cost for rung in family.rungs)
        size = f"{target.width} x {target.depth}, {target.steps} steps"
        print(f"| {family.name} | {size} | {ratio:.0f} | {count(own[key])} | {count(other[key])} |")
    for what, alarms in (("a seed of the ladder", own), ("another seed", other)):
        whole = np.concatenate(list(alarms.values()))
        print(what, interval(int(np.isfinite(whole).sum()), len(whole)))
    return own


def _detections(families: list[Family], courses: Courses) -> dict[tuple[str, str], np.ndarray]:
    """Prints a row for each fault: noticed in the first third / ever, change of the test loss; returns the alarms."""
    print("\n| fault |", " | ".join(family.name for family in families), "|")
    print("| --- |", " | ".join("---" for _ in families), "|")
    table: dict[tuple[str, str], np.ndarray] = {}
    for fault in families[0].faulty:
        cells = []
        for family in families:
            if fault not in family.faulty:
                cells.append("")
                continue
            at = [courses[family.name, family.targets[0], s] for s in range(FAULT_SEEDS)]
            alarms = np.array([alarm(course, family.faulty[fault], s) for s, course in enumerate(at)])
            table[family.name, fault] = alarms
            harm = family.test_loss[fault] / family.test_loss[""] - 1
            cells.append(f"{(alarms <= THIRD).sum()} / {np.isfinite(alarms).sum()} ({harm:+.0%})")
        print(f"| {fault} |", " | ".join(cells), "|")
    return table


def _panels(count: int, **shared: bool):
    figure, axes = plt.subplots(1, count, figsize=(3.2 * count, 3.3), layout="constrained", squeeze=False, **shared)
    return figure, axes[0]


_SHOWN = {"rate x 4": "C3", "25 % of labels permuted": "C1", "SP": "C4"}


def _draw_courses(families: list[Family], courses: Courses) -> None:
    """The band of one ladder of each family, healthy runs and runs with faults."""
    figure, axes = _panels(len(families))
    for ax, family in zip(axes, families, strict=True):
        target = family.targets[0]
        course, curves = courses[family.name, target, 0], family.healthy[target]
        starts, ends = np.array([0, *course.ends[:-1]]) / target.steps, np.array(course.ends) / target.steps
        x, middle = np.stack([starts, ends], 1).ravel(), (starts + ends) / 2
        ax.fill_between(x, np.repeat(course.low, 2), np.repeat(course.high, 2), color="C0", alpha=0.2, linewidth=0)
        ax.plot(x, np.repeat(course.expected, 2), color="C0", linestyle=":", label="forecast and its band")
        for k, row in enumerate(curves.means(ends)[:5]):
            ax.plot(middle, row, color="C2", linewidth=0.8, label=None if k else "healthy, 5 seeds")
        for fault, color in _SHOWN.items():
            if fault in family.faulty:
                ax.plot(middle, family.faulty[fault].means(ends)[0], color=color, linewidth=1, label=fault)
        ax.set(title=f"{family.name}, {target.width} x {target.depth}", xlabel="part of the run", xlim=(0, 1))
        ax.set(yscale="log", ylim=(0.9 * min(course.low), 2 * max(course.high)))
        ax.axvline(THIRD, color="0.6", linewidth=0.8, linestyle="--")
    axes[0].set_ylabel("training loss, means over blocks")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(HERE.parent / "course_bands.png", dpi=110)


def _draw_alarms(families: list[Family], own: Mapping, table: Mapping) -> None:
    """The share of runs outside the band so far, over the run: healthy runs, and each fault."""
    figure, axes = _panels(len(families), sharey=True)
    share, colors = np.linspace(0, 1, 401), {fault: f"C{k}" for k, fault in enumerate(families[0].faulty)}
    so_far = lambda alarms: (np.asarray(alarms)[:, None] <= share).mean(0)
    for ax, family in zip(axes, families, strict=True):
        for k, (fault, color) in enumerate(colors.items()):
            if fault in family.faulty:  # lines that coincide are drawn a little apart
                ax.plot(share, so_far(table[family.name, fault]) + 0.006 * k, color=color, label=fault)
        healthy = np.concatenate([own[family.name, target] for target in family.targets])
        ax.plot(share, so_far(healthy), color="black", linewidth=2, label="healthy")
        ax.set(title=family.name, xlabel="part of the run", xlim=(0, 1), ylim=(-0.03, 1.06))
        ax.axvline(THIRD, color="0.6", linewidth=0.8, linestyle="--")
    axes[0].set_ylabel("runs with an alarm so far")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(HERE.parent / "course_alarms.png", dpi=110)


if __name__ == "__main__":
    main()

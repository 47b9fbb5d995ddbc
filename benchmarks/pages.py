"""Results as Markdown tables in reproduction/pages/performance.md; those of GPUs also as figures."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence

from benchmarks.contest import ROOT
from benchmarks.figures import FIGURES, RESULTS
from benchmarks.gpu import page as gpu_page
from benchmarks.row import Row
from depthmup_flax.util.types import Json

PAGE = ROOT / "reproduction" / "pages" / "performance.md"


NOT_MEASURED = "No result of a GPU is in `benchmarks/results` yet."


def document() -> None:
    """Replaces the tables between ``<!-- benchmarks: cpu -->``, or another part, and ``<!-- end -->`` in the page."""
    results = stored()
    parts = {
        "cpu": f"{where(results['cpu'])}\n\n{summary(results['cpu'])}",
        "gpu": "\n\n".join(map(_on_gpu, results.get("gpu", []))) or NOT_MEASURED,
        "gpu-estimates": "\n\n".join(map(_estimated_on_gpu, results["gpu-estimates"])),
        "tpu": "\n\n".join(map(_on_tpu, results["tpu"])),
    }
    for device, part in parts.items():
        text, begin = PAGE.read_text(), f"<!-- benchmarks: {device} -->\n"
        before, _, after = text.partition(begin)
        PAGE.write_text(f"{before}{begin}{part}\n{after[after.index('<!-- end -->') :]}")


def file_name(device: str, hardware: str) -> str:
    """Of the results of a processor or GPU, without the ending."""
    return f"{device}-{'-'.join(re.findall(r'[a-z0-9]+', hardware.lower()))}"


def _on_gpu(result: Json) -> str:
    """The table of a GPU and its figure, which is drawn beside the page."""
    figure = PAGE.parent / f"{file_name('gpu', result['hardware'])}.png"
    gpu_page.draw(result, figure)
    return f"{gpu_page.table(result)}\n\n![Share of the peak that steps reach]({figure.name})"


def _estimated_on_gpu(result: Json) -> str:
    """The lower bounds of `benchmarks.gpu.steps`: a row for each network, a column for each form."""
    cells: Json = result["cells"]
    forms = list(dict.fromkeys(form for row in cells.values() for form in row))
    titles = ["ms at least; GiB; kernels; GB", *forms]
    lines = [_cells(titles), _cells(["---"] * len(titles), space="")]
    lines += [_cells([title, *(row.get(form, "") for form in forms)]) for title, row in cells.items()]
    return "\n".join([_made([result]), "", *lines])


def _on_tpu(result: Json) -> str:
    """The estimates of `benchmarks.tpu`: a row for each network, a column for this package and one for plain Flax."""
    forms, networks = ("ours", "plain Flax"), dict[str, Json]()
    for name, cell in result["cells"].items():
        title, _, form = name.rpartition(": ")
        networks.setdefault(title, {})[form] = cell
    facts = "ms, of them in kernels; share of the peak; GiB; compiled in s"
    titles = ["a chip of v5e", "products at the peak, ms", *(f"{form}: {facts}" for form in forms)]
    lines = [_cells(titles), _cells(["---"] * len(titles), space="")]
    for title, cells in sorted(networks.items()):
        cell = next(iter(cells.values()))
        network = f"{title}; {1e-6 * cell['parameters']:.3g} M parameters"
        products = f"{1e3 * cell['products_seconds']:.3g}"
        lines.append(_cells([network, products, *(_estimate(cells.get(form)) for form in forms)]))
    return "\n".join([_made(list(result["cells"].values())), "", *lines])


def _estimate(cell: Json | None) -> str:
    if cell is None:
        return ""
    seconds, gib = cell["seconds"], cell["temporary_bytes"] / 2**30
    kernels = f"{1e3 * cell['kernels_seconds']:.3g}" if cell["kernels"] else "none"
    share = f"{100 * cell['products_seconds'] / seconds:.3g} %"
    return f"**{1e3 * seconds:.3g}**, {kernels}; {share}; {gib:.2f}; {cell['compile_processor_seconds']:.0f}"


def _made(facts: Sequence[Json]) -> str:
    """Versions and days."""
    versions = sorted({f"{name} {version}" for one in facts for name, version in one["versions"].items()})
    return f"{', '.join(versions)}; {' and '.join(sorted({one['day'] for one in facts}))}."


def stored() -> dict[str, list[Json]]:
    """Device -> results of each of its processors in benchmarks/results."""
    results: dict[str, list[Json]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        results.setdefault(result["device"], []).append(result)
    return results


def where(results: Sequence[Json]) -> str:
    """Hardware, versions and days of the measurements, each combination of hardware and stack once."""
    lines = []
    for result in results:
        measured: dict[str, list[Json]] = {}
        for figure in result["figures"].values():
            for stack, facts in figure["measured"].items():
                measured.setdefault(stack, []).append(facts)
        for stack, all_facts in sorted(measured.items()):
            versions: dict[str, list[str]] = {}
            for facts in all_facts:
                for name, version in facts["versions"].items():
                    if version and version not in versions.setdefault(name, []):
                        versions[name].append(version)
            days = sorted({facts["day"] for facts in all_facts})
            listed = ", ".join(f"{name} {' and '.join(values)}" for name, values in versions.items())
            lines.append(f"* {stack}: {result['hardware']}; {listed}; {' and '.join(days)}.")
    return "\n".join(lines)


def summary(results: Sequence[Json]) -> str:
    """The range of each figure's medians over cases, processors and stacks, as a Markdown table."""
    titles = ["figure", "cases", "medians", "bounds met"]
    lines = [_cells(titles), _cells(["---"] * len(titles), space="")]
    rows = [row for name in FIGURES for result in results for figure, row in _rows(result) if figure == name]
    rows = [row for row in rows if row["value"] is not None]
    several = lambda row: row["figure"].startswith("cost of the rule")  # whose alternatives differ in kind
    kind = lambda row: (row["figure"], row["against"] if several(row) else "")
    for figure, against in dict.fromkeys(map(kind, rows)):
        own = [row for row in rows if kind(row) == (figure, against)]
        medians, unit = sorted(row["value"]["median"] for row in own), own[0]["unit"] and f" {own[0]['unit']}"
        judged = list(filter(None, (Row(**row).judgment for row in own)))
        met = f"{judged.count('met')} of {len(judged)}" if judged else ""
        span = f"**{medians[0]:.3g} to {medians[-1]:.3g}{unit}**"
        lines.append(_cells([f"{figure}; {against}" if against else figure, str(len(own)), span, met]))
    return "\n".join(lines)


def table(results: Sequence[Json]) -> str:
    """The results as a Markdown table: a row for each case and processor, a column for each stack."""
    stacks = sorted({row["stack"] for result in results for _, row in _rows(result)})
    titles = ["figure", "case", "against", *stacks, "bound", "processor"]
    lines = [_cells(titles), _cells(["---"] * len(titles), space="")]
    cases: dict[tuple[str, ...], list[Json]] = {}
    for name, result in itertools.product(FIGURES, results):
        for figure, row in _rows(result):
            if figure == name:
                case = (row["figure"], row["case"], row["against"], result["hardware"])
                cases.setdefault(case, []).append(row)
    lines += [line(rows, stacks, processor) for (*_, processor), rows in cases.items()]
    return "\n".join(lines)


def line(rows: Sequence[Json], stacks: Sequence[str] = (), processor: str = "") -> str:
    """A row of `table`: one case on one processor, with a cell for each of ``stacks``."""
    by_stack = {row["stack"]: row for row in rows}
    first = rows[0]
    bar = "" if first["bar"] is None else f"{'<=' if first['at_most'] else '>='} {first['bar']:g}"
    cells = [_cell(by_stack[stack]) if stack in by_stack else "" for stack in stacks or by_stack]
    return _cells([first["figure"], first["case"], first["against"], *cells, bar, processor])


def _rows(result: Json) -> Iterator[tuple[str, Json]]:
    for name, figure in result["figures"].items():
        for row in figure["rows"]:
            yield name, row


def _cells(texts: Sequence[str], space: str = " ") -> str:
    return f"|{'|'.join(f'{space}{text}{space}' for text in texts)}|"


def _cell(row: Json) -> str:
    if row["value"] is None:
        return row["note"]
    judgment = Row(**row).judgment
    return "; ".join(text for text in (_measured(row), judgment, row["note"]) if text)


def _measured(row: Json) -> str:
    value, unit = row["value"], row["unit"] and f" {row['unit']}"
    spread = f" ({value['low']:.3g}-{value['high']:.3g}, {value['n']})" if value["n"] > 1 else ""
    return f"**{value['median']:.3g}{unit}**{spread}"

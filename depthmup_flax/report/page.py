"""The page of a sweep: verdict, figures, tables, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from depthmup_flax.report import presets, settings, tables
from depthmup_flax.report.document import document, downloads, items, picture
from depthmup_flax.report.loss_surfaces import EVALUATED, number
from depthmup_flax.report.sheet import Sheet
from depthmup_flax.report.transfer import Analysis
from depthmup_flax.storage.records.table import TRAIN
from depthmup_flax.util import notebook_html
from depthmup_flax.util.types import Json

_FEW_VERDICTS = 4  # more are folded


def render(
    data: Json,
    figures: Sequence[tuple[str, str, Sheet]],
    analysis: Analysis,
    files: Mapping[str, bytes],
    refresh_s: float | None = None,
) -> str:
    """The page of an analysis along x and its `as_data`.

    ``figures`` are name, caption and panels, the main one first; ``files`` are name -> content of downloads;
    ``refresh_s`` are seconds between reloads of the page while a sweep runs.
    """
    pictures = [picture(*figure, files, level=3 if k else 2) for k, figure in enumerate(figures)]
    more = f'<h2>More figures</h2>\n<div class="figures">{"".join(pictures[1:])}</div>\n' if pictures[1:] else ""
    return document(
        data["title"],
        _head(data, refresh_s)
        + _comparison(data)
        + "".join(pictures[:1])
        + f"<h2>Tables</h2>\n<p>{escape(tables.explanation(analysis))}</p>\n"
        + f"<p>{escape(tables.tolerance_sentence(data, analysis))}</p>\n"
        + _tables(data, analysis)
        + f'<p class="downloads">Download: {downloads(files, "csv")}</p>\n'
        + _claims(data)
        + more
        + (f'<h2 id="notes">Notes</h2>\n<ul class="notes">{items(data["notes"])}</ul>\n' if data["notes"] else "")
        + _facts(data),
        refresh_s,
    )


def extract(data: Json, analysis: Analysis, files: Mapping[str, bytes]) -> str:
    """The verdicts, the tables and the first figure of ``files`` as HTML for a notebook's cell."""
    main = next((content for name, content in files.items() if name.endswith(".png")), None)
    return (
        notebook_html.heading(data["headline"])
        + notebook_html.items([*tables.other_verdicts(data), *data["notes"]])
        + _comparison(data)
        + _tables(data, analysis)
        + notebook_html.paragraphs([settings.sentence(data["settings"])])
        + (notebook_html.image(main, data["headline"]) if main else "")
    )


def _head(data: Json, refresh_s: float | None) -> str:
    """The verdict in words, then what was run."""
    seeds, notes, others = len(data["seeds"]), len(data["notes"]), tables.other_verdicts(data)
    facts = [data["title"], tables.counts(data)]
    facts += [
        f"{seeds} seed{'s' * (seeds != 1)}",
        *([] if data["loss"] == TRAIN else [f"all losses {EVALUATED[data['loss']]}"]),
    ]
    link = f' · <a href="#notes">{notes}&nbsp;note{"s" * (notes != 1)}</a>' if notes else ""
    claim, _, reason = data["headline"].partition(": ")
    opened = " open" * (len(others) <= _FEW_VERDICTS)
    more = f"<summary>All other verdicts ({len(others)})</summary><ul>{items(others)}</ul>"
    return (
        f"<h1>{escape(claim)}</h1>\n"
        + (f'<p class="lead">{escape(reason[0].upper() + reason[1:])}</p>\n' if reason else "")
        + f'<p class="faint">{escape(" · ".join(facts))}{link}</p>\n'
        + (f'<p role="status">The sweep runs; this page reloads every {refresh_s:g} s.</p>\n' if refresh_s else "")
        + (f"<details{opened}>{more}</details>\n" if others else "")
    )


def _comparison(data: Json) -> str:
    """The presets that were compared at one size; empty if none were."""
    if not data["comparison"]:
        return ""
    compared = data["comparison"]
    listed = items(f"{preset}: {text}" for preset, text in presets.results_of(compared))
    remarks = escape(" ".join(presets.remarks(compared)))
    return f"<h2>Comparison</h2>\n<p>{escape(presets.heading(compared))}</p>\n<ul>{listed}</ul>\n<p>{remarks}</p>\n"


def _claims(data: Json) -> str:
    """The paper's claims, with what the sweep shows about each; empty for a sweep of no paper's figure."""
    if not data["claims"]:
        return ""
    listed = items(one["sentence"] for one in data["claims"])
    return f"<h2>The paper's claims</h2>\n<ul>{listed}</ul>\n<p>{escape(tables.claims_cost(data))}</p>\n"


def _facts(data: Json) -> str:
    """What was trained, the axes of the sweep, devices and versions."""
    facts = {
        "figure, scale": f"{data['figure']}, {data['scale']}",
        **data["settings"],
        **{axis: ", ".join(map(number, values)) for axis, values in data["axes"].items()},
        "devices": "; ".join(data["devices"]),
        "time": tables.duration(data["hours"]),
        "versions": ", ".join(data["versions"]),
        "commits": ", ".join(data["commits"]),
    }
    rows = "".join(f'<tr><th scope="row">{escape(k)}</th><td>{escape(v)}</td></tr>' for k, v in facts.items() if v)
    return f'<h2>How it was measured</h2>\n<table class="facts">{rows}</table>\n'


def _tables(data: Json, analysis: Analysis) -> str:
    """A table per variant; without the columns that are empty in all of them."""
    head = [*tables.header(data), "diverged runs"]
    bodies = [
        [
            [*cells, ", ".join(f"{n} at {x}" for x, n in row["diverged"].items())]
            for cells, row in zip(tables.table_rows(variant), variant["rows"], strict=True)
        ]
        for variant in data["variants"]
    ]
    shown = [k for k in range(len(head)) if any(row[k] for body in bodies for row in body)]
    return "".join(
        _table(variant, [[row[k] for k in shown] for row in (head, *body)], analysis.scale.name)
        for variant, body in zip(data["variants"], bodies, strict=True)
    )


def _table(variant: Json, rows: Sequence[Sequence[str]], x: str) -> str:
    head, *body = rows
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    # On phones the style shows each row as a block, in which cells bear their columns' names.
    line = lambda row: "".join(
        f'<td data-column="{escape(n)}">{escape(cell)}</td>' for n, cell in zip(head, row, strict=True)
    )
    lines = "".join(f"<tr>{line(row)}</tr>\n" for row in body)
    slopes = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in tables.slope_sentences(variant, x))
    name = f"<h3>{escape(variant['name'])}</h3>\n" if variant["name"] else ""
    label = escape(f"Results by size {variant['name']}".rstrip())
    return (
        f'{name}<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f'<table class="results"><thead><tr>{columns}</tr></thead><tbody>{lines}</tbody></table></div>\n{slopes}'
    )

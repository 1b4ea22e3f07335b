"""One self-contained HTML page about some runs; it loads nothing from elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Any

from resitta.bench.paper import PaperRow
from resitta.bench.record import RunRecord
from resitta.errors import require
from resitta.report import charts
from resitta.report import timeline as timelines
from resitta.report.captions import drift_caption, error_caption, facts, headline, heat_words, lead
from resitta.report.figures import NARROW, SMALL, WIDE
from resitta.report.groups import Group, grouped
from resitta.report.identity import common_facts
from resitta.report.palette import colours, hero
from resitta.report.paper_comparison import Comparison
from resitta.report.pictures import BankItem, Strip, data_uri
from resitta.report.table import table_of
from resitta.report.timeline import Timeline

__all__ = ["BankItem", "Strip", "write_page"]


def write_page(
    path: Path | str,
    *,
    title: str,
    runs: Sequence[RunRecord],
    intro: str = "",
    strips: Sequence[Strip] = (),
    timeline: Timeline | None = None,
    changed: Sequence[Strip] = (),
    bank: Sequence[BankItem] = (),
    classes: Sequence[str] = (),
    paper: Mapping[str, PaperRow] | None = None,
    comparisons: Sequence[Comparison] = (),
    environment: Mapping[str, str] | None = None,
    commands: Sequence[str] = (),
    highlight: str = "",
) -> Path:
    """Write a page with the table of errors, the figures, the pictures and how to reproduce the runs.

    Args:
        path: the file to write; its folder is made.
        title: what was run; the headline with the result is computed.
        runs: records of several methods and seeds over the same domains.
        intro: a paragraph about the experiment; an empty line begins another.
        strips: rows of images that show the stream.
        timeline: a piece of the stream that shows a label prior at work, see `resitta.report.timeline`.
        changed: images from it whose label the prior changed.
        bank: what the memory bank holds at the end, see `bank_items`.
        classes: the names of the classes.
        paper: a main table of the paper to compare with, such as `PAPER.table1`.
        comparisons: average errors while something varies, see `resitta.report.paper_comparison`.
        environment: versions and hardware, see `resitta.bench.record.environment`.
        commands: the command lines that reproduce the page.
        highlight: the row, or the method, that the page is about; ResiTTA unless told otherwise.
    """
    groups = grouped(runs)
    ours = hero(groups, highlight)
    content = {
        "title": title,
        "headline": headline(groups, ours),
        "lead": lead(groups, ours),
        "intro": [part for part in intro.split("\n\n") if part.strip()],
        "facts": facts(groups, ours),
        "strips": [_pictures(strip) for strip in strips],
        "prior": _prior(timeline, classes) if timeline else None,
        "changed": [_pictures(strip) for strip in changed],
        "bank": [(data_uri(item.image), item) for item in bank],
        "performance": [_performance(group) for group in groups],
        "settings": [(group.label, group.runs[0].settings) for group in groups],
        "common": common_facts([group.runs[0] for group in groups]),
        "environment": environment or {},
        "commands": commands,
        **_tables(groups, ours, paper),
        **_figures(groups, ours, classes),
        "comparisons": [(found, charts.comparison(found, width=SMALL)) for found in comparisons],
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_render(content), encoding="utf-8")
    return path


def _pictures(strip: Strip) -> tuple[str, list[tuple[str, str]]]:
    """Return a caption, and images with their labels."""
    return strip.caption, list(zip_longest(map(data_uri, strip.images), strip.labels, fillvalue=""))


def _prior(timeline: Timeline, classes: Sequence[str]) -> dict[str, Any]:
    return {
        "figure": _both(timelines.figure, timeline, classes),
        "legend": timelines.legend(timeline, classes),
        "caption": timelines.caption(timeline),
        "table": timelines.table(timeline, classes),
    }


def _tables(groups: Sequence[Group], ours: Group, paper: Mapping[str, PaperRow] | None) -> dict[str, Any]:
    table = table_of(groups, paper=paper)
    compared = [(row, max(row.differences[:-1], key=abs)) for row in table.rows if row.paper]
    return {
        "table": table,
        "colours": colours(groups, ours),
        "highest": max((cell.mean for row in table.rows for cell in row.cells), default=0.0) or 1.0,
        "heat_words": heat_words(groups, table),
        "compared": compared,
        "notes": table.notes,
        "source_compared": any(row.method == "source" for row, _ in compared),
    }


def _figures(groups: Sequence[Group], ours: Group, classes: Sequence[str]) -> dict[str, str]:
    run, colour = ours.runs[0], colours(groups, ours)
    spans = charts.spans_of(run.domains, run.borders, run.samples)
    counts, shown = run.bank_per_class, charts.same_stream(groups, ours)
    drifting = any(charts.drifts(group) for group in shown)
    return {
        "error_figure": _both(charts.error_over_time, shown, colour, spans),
        "error_caption": error_caption(groups, ours),
        "bank_figure": _both(charts.bank_composition, counts, classes) if counts else "",
        "bank_of": f"{ours.label}, seed {run.seed}",
        "drift_figure": _both(charts.drift_over_time, shown, colour, spans) if drifting else "",
        "drift_caption": drift_caption(shown, ours) if drifting else "",
        "layer_figure": _both(charts.drift_per_layer, shown, colour) if drifting else "",
    }


def _both(draw: Callable[..., str], *what: Any) -> str:
    """Draw a figure twice, for a wide and for a narrow window; the style sheet shows one."""
    return f'<div class="wide">{draw(*what, width=WIDE)}</div><div class="narrow">{draw(*what, width=NARROW)}</div>'


def _performance(group: Group) -> dict[str, Any]:
    """Return one row of the table of calibration and speed, as means over the seeds."""
    return {
        "label": group.label,
        "seeds": len(group.runs),
        "error": group.average,
        "ece": 100 * group.mean(lambda run: run.ece),
        "nll": group.mean(lambda run: run.nll),
        "speed": group.mean(lambda run: run.images_per_second),
        "updates": group.mean(lambda run: run.updates),
    }


def _render(content: dict[str, Any]) -> str:
    """Fill the template; every string is escaped except figures, which escape their own."""
    files = resources.files("resitta.report")
    template, *styles, script, own = (
        files.joinpath(name).read_text("utf-8")
        for name in ("page.html", "base.css", "page.css", "figures.js", "page.js")
    )
    engine = require("jinja2", "bench").Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page: str = engine.from_string(template).render(**content, css="".join(styles), js=script + own)
    return page

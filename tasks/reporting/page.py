"""One HTML file out of Markdown, with everything in it, and pictures: the looks of report, card and meters."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

STYLE = """\
body { font: 16px/1.55 system-ui, sans-serif; color: #1c2530; max-width: 60rem; margin: 2rem auto; padding: 0 1.25rem }
h1, h2, h3 { line-height: 1.25 } h2 { margin-top: 2.2rem; border-bottom: 1px solid #d8dee6; padding-bottom: .25rem }
table { border-collapse: collapse; margin: 1rem 0; font-size: .94em }
th, td { padding: .35rem .5rem; border-bottom: 1px solid #e3e8ee }
th { background: #f3f6f9; text-align: left } td { font-variant-numeric: tabular-nums }
td:first-child { white-space: nowrap }
pre { background: #f6f8fa; padding: .8rem 1rem; white-space: pre-wrap; border-radius: 6px } svg { max-width: 100%;
height: auto }
object { width: 100%; height: 32rem }
details { margin: 1rem 0 } summary { cursor: pointer; color: #1d5fa8 }"""
SUMMARY = "<p>&lt;details&gt;&lt;summary&gt;(.*?)&lt;/summary&gt;</p>"
END = "<p>&lt;/details&gt;</p>"
"""How ``folded`` comes out of a renderer that lets no HTML through."""


def page(title: str, text: str, figures: Mapping[str, str] | None = None, end: str = "") -> str:
    """The Markdown as one HTML page; images named in ``figures`` (SVG by file name) go inside, ``end`` is HTML."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    body = re.sub(SUMMARY, r"<details><summary>\1</summary>", body).replace(END, "</details>")
    for name, figure in (figures or {}).items():
        before, image, after = body.partition(f'<img src="{name}"')
        if image:
            body = before + figure[figure.index("<svg") :] + after.partition(">")[2]
    head = f'<meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}{end}</body></html>\n'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def folded(summary: str, *parts: str) -> str:
    """Markdown that is shown when its summary is clicked at, here and on code hosts."""
    return "\n\n".join([f"<details><summary>{summary}</summary>", *parts, "</details>"])


def plain(text: str) -> str:
    """Any text as Markdown that shows it, on one line, also in a table."""
    return re.sub(r"([\\`*_\[\]{}<>&|~$#@!])", r"\\\1", " ".join(text.split()))


def plotting() -> Any:
    """``matplotlib.pyplot`` for pictures that are the same bytes wherever they are drawn."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "plm"
    from matplotlib import pyplot

    return pyplot


def drawn(figure: Any) -> str:
    """A figure as SVG without a date; it is closed."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plotting().close(figure)
    return text.getvalue()

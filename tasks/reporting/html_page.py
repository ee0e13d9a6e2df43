"""Markdown as one self-contained HTML file, and pictures: the look of every page for people."""

import io
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from plm_core.templates import render

SUMMARY = "<p>&lt;details&gt;&lt;summary&gt;(.*?)&lt;/summary&gt;</p>"
END = "<p>&lt;/details&gt;</p>"
"""What collapsible parts of a page look like after a renderer that escapes HTML."""


def page(template: str, text: str, figures: Mapping[str, str] | None = None, fold: bool = False) -> str:
    """The Markdown in an HTML template; images named in ``figures`` (SVG by file name) are embedded.

    With ``fold``, all sections but the first are closed until somebody opens them or follows a link to them.
    """
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    body = re.sub(SUMMARY, r"<details><summary>\1</summary>", body).replace(END, "</details>")
    for name, figure in (figures or {}).items():
        before, image, after = body.partition(f'<img src="{quote(name)}" alt=')
        if image:
            words, _, after = after.partition(" />")
            body = f'{before}<svg role="img" aria-label={words}{figure[figure.index("<svg") + 4 :]}{after}'
    if fold:
        head, *parts = re.split("<h2>(.*?)</h2>", body)
        # Links as in GitHub's Markdown; one to what closed details contain opens them.
        sections = [(re.sub("[^a-z0-9-]", "", t.lower().replace(" ", "-")), t) for t in parts[::2]]
        links = " · ".join(f'<a href="#{name}">{title}</a>' for name, title in sections)
        folded = (
            f'<details class="section"><summary><h2>{title}</h2></summary><a id="{name}"></a>{part}</details>\n'
            for (name, title), part in zip(sections, parts[1::2], strict=True)
        )
        head = head.replace("</ul>", f"</ul>\n<nav>{links}</nav>", 1)
        body = head + "".join(folded).replace('class="section"', 'class="section" open', 1)
    return render(template, body=body)


def plotting() -> Any:
    """``matplotlib.pyplot`` for pictures that are byte-identical on every machine."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "plm"
    # A name with two dollar signs is not a formula.
    matplotlib.rcParams["text.parse_math"] = False
    from matplotlib import pyplot

    return pyplot


def figure_svg(figure: Any) -> str:
    """A figure as SVG without a date; closes the figure."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plotting().close(figure)
    return text.getvalue()

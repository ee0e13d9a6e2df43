"""A page has every figure that its template asks for, and no text in it breaks its tables."""

import html
import re

import jinja2
import pytest
from markdown_it import MarkdownIt

from plm_core.templates import READ, aligned, cell, code, plain, render


def test_a_figure_that_is_not_given_is_an_error_and_no_blank():
    with pytest.raises(jinja2.UndefinedError, match="'body' is undefined"):
        render("tasks/reporting/templates/report.html.j2")
    with pytest.raises(FileNotFoundError, match=r"reporting/none\.j2"):
        render("tasks/reporting/none.j2")


def test_what_is_read_is_known_with_what_it_extends():
    page = render("tasks/reporting/templates/report.html.j2", body="<p>found</p>\n")
    assert page.startswith("<!doctype html>\n")
    assert page.endswith("</object>\n</body></html>\n")
    assert "<title>Language models: results</title>" in page
    assert "<body>\n<p>found</p>\n<object" in page
    assert {"report.html.j2", "page.html.j2"} <= {path.name for path in READ}


def test_columns_are_as_wide_as_what_they_hold():
    table = "|  | measured | p |\n| --- | --- | --- |\n| era | f1 |  |\n| a \\| longer | f1 | 0.25 |\n"
    assert aligned(table) == (
        "|             | measured | p    |\n"
        "| ----------- | -------- | ---- |\n"
        "| era         | f1       |      |\n"
        "| a \\| longer | f1       | 0.25 |\n"
    )


LIVE = [
    "![a](https://example.org/a.png) [b](https://example.org)",
    "https://example.org www.example.org <https://example.org> a@example.org",
    "`![a](b)` ``[a](b)` |",
    "`",
    "a\n\n[b]: https://example.org\n\n# c",
    "<img src=x> &lt; \\",
]


@pytest.mark.parametrize("text", LIVE)
def test_in_code_nothing_is_a_link_or_an_image_and_all_of_it_is_seen(text):
    page = MarkdownIt("commonmark").enable("table").render(f"| a | b |\n| --- | --- |\n| {code(text)} | b |\n")
    assert re.findall("<(?!/|t|code)", page) == []
    assert f"<td><code>{html.escape(' '.join(text.split()), quote=False)}</code></td>" in page.replace("&quot;", '"')


def test_no_text_ends_a_cell_or_starts_markup():
    assert cell("a|b <i> `c` *d* \\") == "a\\|b &lt;i> \\`c\\` \\*d\\* \\\\"
    assert plain("a|b\n <i>  [c](d)") == "a\\|b \\<i\\> \\[c\\](d)"

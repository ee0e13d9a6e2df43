"""A page has every figure that its template asks for, and no text in it breaks its tables."""

import html
import re

import jinja2
import pytest
from markdown_it import MarkdownIt

from plm_core.templates import READ, aligned, cell, code, plain, render, spaced


def test_template_with_missing_value_is_an_error():
    with pytest.raises(jinja2.UndefinedError, match="'body' is undefined"):
        render("tasks/reporting/templates/report.html.j2")
    with pytest.raises(FileNotFoundError, match=r"reporting/none\.j2"):
        render("tasks/reporting/none.j2")


def test_template_reads_include_extended_templates():
    page = render("tasks/reporting/templates/report.html.j2", body="<p>found</p>\n")
    assert page.startswith("<!doctype html>\n")
    assert page.endswith("</object>\n</main></body></html>\n")
    assert "<title>Language models: results</title>" in page
    assert "<main>\n<p>found</p>\n<object" in page
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


def test_markdown_cells_are_escaped():
    assert cell("a|b <i> `c` *d* \\") == "a\\|b &lt;i> \\`c\\` \\*d\\* \\\\"


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("a|b\n <i>  [c](d)", "a&#124;b &#60;i&#62; &#91;c&#93;(d)"),
        (
            "![x](y) `z` *w* &lt; ~~v~~ #1 @me",
            "&#33;&#91;x&#93;(y) &#96;z&#96; &#42;w&#42; &#38;lt; &#126;&#126;v&#126;&#126; &#35;1 &#64;me",
        ),
        ("see https://a.io or www.b.io :smile:", "see https&#58;//a&#46;io or www&#46;b&#46;io &#58;smile:"),
        ("- 1. one + two", "&#45; 1&#46; one &#43; two"),
        ("score: -0.5 (0.1 to +0.2), bits_per_byte, _it_.", "score: -0.5 (0.1 to +0.2), bits_per_byte, &#95;it&#95;."),
    ],
)
def test_plain_text_is_shown_as_it_is_and_means_nothing(text, markdown):
    assert plain(text) == markdown
    shown = MarkdownIt("gfm-like", {"linkify": False}).render(f"- x {plain(text)}\n")
    assert shown == f"<ul>\n<li>x {html.escape(' '.join(text.split()), quote=False)}</li>\n</ul>\n"


def test_cells_are_kept_apart_where_a_page_gives_them_no_room():
    assert spaced("| a | b |\n| --- | --- |\n") == "| a\u2003\u200c| b |\n| --- | --- |\n"

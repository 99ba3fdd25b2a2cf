"""What a student wrote, as formgrader's and feedback's pages show it: harmless, and readable."""

from __future__ import annotations

import html

import nbformat
import pytest
from nbconvert import HTMLExporter
from traitlets.config import Config

from grader.classroom.nbgrader_settings import configure
from grader.classroom.trim_outputs import TrimOutput
from grader.grading.report import AGREES, CheckReport, ScenarioReport, TaskReport
from grader.grading.report_text import task_html

PICTURE = "iVBORw0KGgo="


@pytest.fixture(scope="module")
def exporter(tmp_path_factory: pytest.TempPathFactory) -> HTMLExporter:
    """As nbgrader's: its templates put Markdown into the page as the filter returns it."""
    config = Config()
    configure(config, tmp_path_factory.mktemp("class"))
    template = "{% for cell in nb.cells %}{% block markdowncell scoped %}"
    template += "{{ cell.source | markdown2html }}{% endblock %}{% endfor %}"
    return HTMLExporter(config=config, raw_template=template)


def page(exporter: HTMLExporter, source: str, **more: object) -> str:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(source, **more)])
    return exporter.from_notebook_node(notebook)[0]


@pytest.mark.parametrize(
    "evil",
    ["<script>steal()</script>", "<img src=x onerror=steal()>", "<svg onload=steal()></svg>",
     "[a](javascript:steal())", "<a href=' jAvascript:steal()'>a</a>",
     "<iframe srcdoc='<script>steal()</script>'></iframe>", "[a](data:text/html,steal())",
     "<style>body{background:url(//steal())}</style>", "![](https://x.org/steal())",
     "<div style='position:fixed' onclick=steal()>a</div>"],
)  # fmt: skip
def test_no_markdown_of_a_student_acts(exporter: HTMLExporter, evil: str) -> None:
    from bs4 import BeautifulSoup

    found = BeautifulSoup(page(exporter, evil), "html.parser")
    assert not found.select("script, iframe, style, svg, [style], [srcdoc]")
    values = [str(v) for tag in found.find_all(True) for v in tag.attrs.values()]
    assert not [value for value in values if "steal" in value]


def test_a_student_names_no_field_of_the_page(exporter: HTMLExporter) -> None:
    found = page(exporter, "# lab01-task-1\n\n<div id='lab01-task-2' class='navbar'>x</div>")
    assert "id=" not in found
    assert "class=" not in found


@pytest.mark.parametrize("unit", ["[", "*a ", "![", "_<-/_1", ">!", "<b>", "`[", "&`+"])
def test_no_text_holds_the_pages_up(exporter: HTMLExporter, unit: str) -> None:
    text = unit * (400_000 // len(unit))  # rendered, it may take minutes
    assert f"<pre>{html.escape(text)}</pre>" in page(exporter, text)


def test_an_answer_stays_readable(exporter: HTMLExporter) -> None:
    code, table = "```python\nif a < b: pass\n```", "|a|b|\n|-|-|\n|1|2|"
    found = page(exporter, f"`a < b && c -> d` is **so**\n\n{code}\n\n{table}\n\n$x < y$")
    assert "<code>a &lt; b &amp;&amp; c -&gt; d</code> is <strong>so</strong>" in found
    assert '<span class="o">&lt;</span>' in found
    assert '<table class="table' in found
    assert "<td>2</td>" in found
    assert "$x &lt; y$" in found


def test_a_pasted_picture_is_shown(exporter: HTMLExporter) -> None:
    pasted = {"p.png": {"image/png": PICTURE}}
    found = page(exporter, "![mine](attachment:p.png)", attachments=pasted)
    assert f'src="data:image/png;base64,{PICTURE}"' in found


def test_the_report_of_a_task_keeps_its_look(exporter: HTMLExporter) -> None:
    checks = (CheckReport("t::a", "Merges", 3, "failed", "<b>got</b>", card="card < 1"),)
    task = TaskReport(1, "Train BPE", 3.0, checks, (ScenarioReport("s", AGREES),))
    cell = nbformat.v4.new_code_cell("x")
    cell.outputs = [nbformat.v4.new_output("display_data", {"text/html": task_html(task)})]
    shown = HTMLExporter(config=exporter.config, template_name="classic")
    found = shown.from_notebook_node(nbformat.v4.new_notebook(cells=[cell]))[0]
    for sign in ("&lt;section", "&lt;h3", "&lt;br", "&lt;p", "&lt;tbody", "&amp;lt;"):
        assert sign not in found
    assert "&lt;b&gt;got&lt;/b&gt;" in found
    assert "width:0.0%" in found.replace(" ", "")


def test_no_size_of_a_picture_goes_into_the_page() -> None:
    """nbconvert writes a picture's width unquoted: `1 onload=steal()` would be an attribute."""
    cell = nbformat.v4.new_code_cell("x")
    evil = {"image/png": {"width": "1 onload=steal()"}}
    cell.outputs = [nbformat.v4.new_output("display_data", {"image/png": PICTURE}, metadata=evil)]
    trimmed, _ = TrimOutput().preprocess_cell(cell, {}, 0)
    assert trimmed.outputs[0].data["image/png"] == PICTURE
    assert trimmed.outputs[0].metadata == {}

"""The documentation site builds without a warning, has everything, and needs nothing from elsewhere."""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_site import (
    cli_reference,
    comparison_figures,
    pictures,
    proto_reference,
    python_reference,
    settings_reference,
)
from docs_site.assemble import relinked
from docs_site.build import build
from docs_site.paths import DOCS, ROOT
from docs_site.python_examples import EXAMPLES

import elastane
from browser.chromium import MISSING, chromium, chromium_path, overflow, watched_page
from elastane.runtime.job import Job
from elastane_cli.commands.catalogue import COMMANDS
from slow import slow

#: myst-parser's own, of what a later Sphinx will not have.
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning:myst_parser")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The site that `make docs` has built, where ELASTANE_DOCS_SITE names its folder."""
    if built := os.environ.get("ELASTANE_DOCS_SITE"):
        yield Path(built)
        return
    out = tmp_path_factory.mktemp("docs") / "site"
    assert build(out) == ""
    yield out


@slow
def test_every_page_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    home = (site / "index.html").read_text()
    for page in DOCS.rglob("*.md"):
        made = page.relative_to(DOCS).with_suffix(".html")
        assert (site / made).is_file()
        if made.parent.name != "decisions" and made.name != "index.html":
            assert f'href="{made}"' in home, made
    for kind in ("Tutorial", "How to", "Reference", "Explanation"):
        assert f'<span class="caption-text">{kind}</span>' in home


@slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="([^"]+)"', page.read_text())
        loaded += re.findall(r'<link[^>]* href="([^"]+)"[^>]* rel="stylesheet"', page.read_text())
        loaded += re.findall(r'<link[^>]* rel="stylesheet"[^>]* href="([^"]+)"', page.read_text())
        assert loaded
        assert [address for address in loaded if "//" in address] == [], page
    styles = "".join(path.read_text() for path in (site / "_static").rglob("*.css"))
    assert re.findall(r"""url\(["']?(?:https?:)?//""", styles) == []


@slow
@pytest.mark.skipif(chromium_path() is None, reason=MISSING)
@pytest.mark.parametrize("width", [1280, 360])
async def test_pages_fit_a_wide_window_and_a_phone(site: Path, width: int) -> None:
    wider: dict[str, int] = {}
    window = {"width": width, "height": 800}
    async with chromium() as browser, watched_page(browser, viewport=window) as watched:
        for path in sorted(site.rglob("*.html")):
            await watched.page.goto(path.as_uri(), wait_until="domcontentloaded")
            if over := await overflow(watched.page):
                wider[str(path.relative_to(site))] = over
    assert wider == {}


@slow
def test_a_code_has_its_place_in_the_site(site: Path) -> None:
    assert 'id="ela302"' in (site / "errors.html").read_text()
    assert 'href="../errors.html#ela105"' in (site / "howto/troubles.html").read_text()


def test_the_reference_has_every_command_and_option() -> None:
    text = cli_reference.render()
    for name, entry in COMMANDS.items():
        assert entry.hidden or f"\n## elastane {name}\n" in text
    commands = cli_reference.commands()
    assert "--store-password-file" in {
        name for option in cli_reference.options(commands["master"]) for name in option.opts
    }
    for command in commands.values():
        for option in cli_reference.options(command):
            assert option.help, option.opts
            assert all(name in text for name in option.opts)


def test_every_setting_has_a_meaning_in_the_reference() -> None:
    rows = re.findall(r"^\| `(ELASTANE_\w+)` \| (.*?) \|", settings_reference.render(), re.MULTILINE)
    assert len(rows) > 50
    assert [name for name, text in rows if not text.strip()] == []


def test_every_rpc_and_message_is_in_the_reference_with_its_comment() -> None:
    text = proto_reference.render()
    sources = "".join(path.read_text() for path in (ROOT / "proto").rglob("*.proto"))
    for name in re.findall(r"^\s*rpc (\w+)", sources, re.MULTILINE):
        assert f"| `{name}` |" in text
    for name in re.findall(r"^(?:message|enum) (\w+)", sources, re.MULTILINE):
        assert f"\n### {name}\n" in text
    assert "the generation it is in and its applied step" in text


def test_what_a_script_uses_is_in_the_reference() -> None:
    text = python_reference.render()
    for words in (
        "job.prepare(",
        "job.tasks(",
        "with job.isolated_rng()",
        "`accumulation_steps`",
        "elastane.init(",
    ):
        assert words in text


def test_each_part_of_the_python_reference_has_an_example_and_its_errors() -> None:
    text = python_reference.render()
    parts = re.split(r"^(?=##+ )", text, flags=re.MULTILINE)[1:]
    named = {part.splitlines()[0].lstrip("# "): part for part in parts}
    assert set(EXAMPLES) <= set(named)
    without = [
        name
        for name, part in named.items()
        if name.startswith(("Job.", "elastane.init", "elastane.save_model"))
        and "**Example:**" not in part
        and "\n    " not in part.partition("```\n")[2]
    ]
    assert without == []
    assert "`UnsupportedError` [ELA301](../errors.md#ela301)" in named["Job.prepare"]
    assert "`RefusedError` [ELA402](../errors.md#ela402)" in named["Job.log_to"]
    signature = named["Job.prepare_ps"].split("```")[1]
    assert "    rows: RowsOf | None = None,\n" in signature
    assert max(map(len, signature.splitlines())) <= 80


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_reference_is_python_and_uses_what_it_stands_for(name: str) -> None:
    used = {
        node.func.attr: {keyword.arg for keyword in node.keywords}
        for node in ast.walk(ast.parse(EXAMPLES[name]))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    owner, _, attribute = name.partition(".")
    if attribute != "ElastaneError":
        assert attribute in used
        function = getattr(Job if owner == "Job" else elastane, attribute)
        parameters = inspect.signature(function).parameters
        assert any(one.kind is one.VAR_KEYWORD for one in parameters.values()) or used[attribute] <= set(
            parameters
        )


def test_the_pictures_are_what_their_generator_makes() -> None:
    made = pictures.all_pictures()
    assert {path.name for path in (DOCS / "pictures").glob("*.svg")} == {path.name for path in made}
    for path, text in made.items():
        assert path.read_text() == text, "run: make docs-pages"


def test_the_comparison_shows_what_was_measured_last() -> None:
    page, measured = comparison_figures.PAGE.read_text(), comparison_figures.MEASURED.read_text()
    assert comparison_figures.render(page, measured) == page, "run: make docs-pages"
    other = measured.replace(
        "| run to first step, 2 workers | ", "| run to first step, 2 workers | 99 s, was "
    )
    assert "99 s, was " in comparison_figures.render(page, other)


def test_links_lead_to_the_pages_as_they_lie_in_the_site() -> None:
    text = "[a](../../SECURITY.md#x) [b](../../examples/char_gpt.py) `c` [d](../errors.md) [e](https://pytorch.org)"
    made = relinked(text, DOCS / "howto" / "page.md", "howto/page.md")
    assert made == (
        "[a](../explanation/security-model.md#x) `b` `c` [d](../errors.md) [e](https://pytorch.org)"
    )
    picture = relinked("![a](docs/pictures/step.svg)", ROOT / "README.md", "readme.md")
    assert picture == "![a](pictures/step.svg)"
    fenced = "```sh\n[a](../../SECURITY.md)\n```\n"
    assert relinked(fenced, DOCS / "howto" / "page.md", "howto/page.md") == fenced


@pytest.mark.parametrize("page", sorted((DOCS / "howto").glob("*.md")), ids=lambda page: page.stem)
def test_a_how_to_begins_with_what_it_is_for(page: Path) -> None:
    first = page.read_text().split("\n\n")[1]
    assert re.match(r"(\*\*|`)?[A-Z]|`", first), first
    assert not first.startswith(("```", "    ", "|", "-", "#")), first
    assert len(first) > 60, first


def test_the_landing_pages_lines_are_those_of_the_example() -> None:
    [block] = re.findall(r"^```diff\n(.*?)^```", (DOCS / "index.md").read_text(), re.MULTILINE | re.DOTALL)
    after, before = ((ROOT / "examples" / name).read_text() for name in ("minimal.py", "minimal_ddp.py"))
    for line in block.splitlines():
        text = line[1:] + "\n"
        assert (text in after) is not line.startswith("-"), line
        assert (text in before) is not line.startswith("+"), line

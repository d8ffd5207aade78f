"""The site is built without a warning, and works on a laptop and a phone, with no network.

One file, so that one process builds it, once.
"""

from __future__ import annotations

import contextlib
import functools
import html
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from course_lib.teaching.solution_marks import BEGIN, STUB
from tests.browser import axe
from tests.browser.chromium import Uncaught, chromium, window
from tests.lab_server import wait_until
from tests.site import built_pages
from tools import build_site, site_pages
from tools.build_notebooks import ANSI

pytestmark = pytest.mark.timeout(600)  # the first time, packages are downloaded

LESSONS = sorted(Path(site_pages.ROOT / "notebooks").glob("[0-9]*.ipynb"))
LONGEST = "notebooks/06_when_does_it_pay.html"
SAMPLE = (
    "index.html",
    "notebooks/00_start_here.html",
    LONGEST,
    "notebooks/glossary.html",
    "reference/torch_mpi4py.html",
    "slides/index.html",
)
LESSON_PAGES = tuple(f"notebooks/{path.stem}.html" for path in LESSONS)
LAPTOP, PHONE = 1366, 390  # CSS pixels


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; Sphinx's warnings are errors."""
    folder = tmp_path_factory.mktemp("site") / "html"
    said = build_site.build(folder)
    assert not said.strip()
    return folder


# ---- the files ----------------------------------------------------------------------------------


def test_links_and_images_exist_and_images_have_alt_text(site: Path) -> None:
    assert len(built_pages.read(site)) > len(site_pages.sources()) + len(site_pages.REFERENCE)
    assert built_pages.dead_links(site) == []
    assert built_pages.pictures_without_words(site) == []
    assert built_pages.fetched_from_elsewhere(site) == []


def test_dead_links_and_images_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"><a href="b.html#there">b</a> <a href="#here">a</a> <a href="#gone">?</a>'
        '<a href="gone.html">?</a> <a href="../out.html">?</a> <a href="https://example.org">ok</a>'
    )
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1><img src="gone.svg" alt=" ">')
    (tmp_path / "c.html").write_text('<script src="https://example.org/x.js"></script>')
    assert built_pages.dead_links(tmp_path) == [
        "a.html: #gone (no such place on that page)",
        "a.html: gone.html",
        "a.html: ../out.html",
        "b.html: gone.svg",
    ]
    assert built_pages.pictures_without_words(tmp_path) == ["b.html: gone.svg"]
    assert built_pages.fetched_from_elsewhere(tmp_path) == ["c.html: https://example.org/x.js"]


@pytest.mark.parametrize("notebook", LESSONS, ids=lambda path: path.stem)
def test_lesson_page_has_outputs_and_folded_solutions(site: Path, notebook: Path) -> None:
    page = (site / "notebooks" / f"{notebook.stem}.html").read_text()
    cells = json.loads(notebook.read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    solved = sum(BEGIN in text for text in code)
    assert solved
    folds = re.findall(r"<details class=\"[^\"]*solution[^\"]*\"( open[^>]*)?>", page)
    assert folds == [""] * solved, "one closed fold for each solution"
    words = html.unescape(re.sub(r"<[^>]+>", "", page))
    assert words.count(STUB) == sum(text.count(BEGIN) for text in code)
    assert "SOLUTION" not in words
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    drawn = 'src="data:image/svg+xml'
    shown = ["".join(output.get("data", {}).get("text/html", "")) for output in outputs]
    assert page.count(drawn) == sum(text.count(drawn) for text in shown)
    assert drawn in page
    errors = ["\n".join(o["traceback"]) for o in outputs if o["output_type"] == "error"]
    assert [text for text in errors if ANSI.sub("", text).strip() not in words] == []


def test_every_deck_is_on_the_site(site: Path) -> None:
    decks = sorted((site_pages.ROOT / "slides").glob("*.html"))
    assert decks
    links = built_pages.read(site)["slides/index.html"].links
    for deck in decks:
        assert (site / "slides" / deck.name).read_bytes() == deck.read_bytes()
        assert deck.name in links


def test_the_reference_has_every_public_name(site: Path, root: Path) -> None:
    import torch_mpi4py

    pages = built_pages.read(site)
    backend = pages["reference/torch_mpi4py.html"].places
    offered = [f"torch_mpi4py.{name}" for name in torch_mpi4py.__all__ if name != "MPI"]
    assert [name for name in offered if name not in backend] == []
    # What the table of modules names; those of a lesson are that lesson's own.
    texts = [(root / source).read_text() for source in site_pages.sources() if ".md" in source]
    (table,) = (text.split("| module | purpose |")[1] for text in texts if "| module |" in text)
    named = []
    for cell in re.findall(r"^\| (`.*?) \|", table.split("\n\n")[0], re.MULTILINE):
        first, *others = re.findall(r"`([\w.]+)`", cell)
        named += [first, *(f"{first.rpartition('.')[0]}.{other}" for other in others)]
    named = [name for name in named if not name.startswith("rank_by_rank.")]
    assert len(named) > 8
    places = {name for page in pages.values() for name in page.places}
    assert [name for name in named if f"module-{name}" not in places] == []


def test_dead_link_stops_the_build() -> None:
    pages = site_pages.sources()
    text = "[a](docs/site_mpi.md#here) ![b](docs/how_it_works.svg) [c](tests) [d](https://a.b)"
    made = "[a](docs/site_mpi.md#here) ![b](docs/how_it_works.svg) c [d](https://a.b)"
    assert site_pages.relinked(text, "README.md", pages) == made
    back = site_pages.relinked("[front](../README.md#lessons)", "docs/site_mpi.md", pages)
    assert back == "[front](../index.md#lessons)"
    with pytest.raises(site_pages.PageError, match=r"docs/site_mpi\.md: there is no gone\.md"):
        site_pages.relinked("[x](gone.md)", "docs/site_mpi.md", pages)


def test_sphinx_warning_stops_the_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def one_page(folder: Path) -> None:
        site_pages.write(folder / "index.md", "# One page\n\n[nowhere](#nowhere)\n")

    monkeypatch.setattr(site_pages, "gather", one_page)
    with pytest.raises(build_site.SiteError, match="nowhere"):
        build_site.build(tmp_path / "html")


def test_build_requirements_are_pinned(root: Path) -> None:
    lines = (root / "site" / "requirements.in").read_text().splitlines()
    wanted = {re.match(r"[\w-]+", line)[0] for line in lines if line and line[0] != "#"}
    locked = (root / "site" / "requirements.lock").read_text().splitlines()
    pins = [line for line in locked if line and not line.startswith("#")]
    assert [line for line in pins if not re.match(r"[\w.-]+==[\w.]+( ;|$)", line)] == []
    assert wanted <= {line.partition("==")[0] for line in pins}
    steps = (root / ".github" / "workflows" / "site.yml").read_text()
    used = re.findall(r"uses: (\S+)", steps)
    assert len(used) == 5
    assert [name for name in used if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", name)] == []


# ---- in a browser -------------------------------------------------------------------------------


# What pages may fetch: what this server has, and what stands in the page itself. Chromium
# refuses anything else, and reports it to the address at the end.
RULES = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; report-uri /refused"


class Server(http.server.ThreadingHTTPServer):
    """Serves the site, and notes what pages wanted of other machines."""

    def __init__(self, folder: Path) -> None:
        self.refused: list[str] = []
        super().__init__(("127.0.0.1", 0), functools.partial(Answer, directory=str(folder)))


class Answer(http.server.SimpleHTTPRequestHandler):
    """Answers with a file and the rules, or notes a report."""

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", RULES)
        super().end_headers()

    def do_POST(self) -> None:
        report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["csp-report"]
        self.server.refused.append(f"{report['document-uri']}: {report['blocked-uri']}")
        self.send_response(204)
        self.end_headers()

    def log_message(self, *words: object) -> None:
        """Write nothing."""


@contextlib.contextmanager
def serving(server: Server) -> Iterator[None]:
    """Let a server answer in a thread."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


class Visitor:
    """Someone who reads the site on a laptop and on a phone."""

    def __init__(self, laptop: Page, phone: Page, server: Server) -> None:
        self.server, self._pages = server, {LAPTOP: laptop, PHONE: phone}
        self.uncaught = [Uncaught(laptop), Uncaught(phone)]
        self._address = f"http://127.0.0.1:{server.server_address[1]}"

    def open(
        self, name: str, width: int = LAPTOP, scheme: Literal["light", "dark"] = "light"
    ) -> Page:
        """Open a page and wait until it is all there, its formulas as well."""
        page = self._pages[width]
        page.emulate_media(color_scheme=scheme)
        page.goto(f"{self._address}/{name}")
        page.evaluate("window.MathJax?.startup?.promise?.then(() => null)")
        return page


@pytest.fixture(scope="module")
def visitor(site: Path) -> Iterator[Visitor]:
    """Serve the site, and open a browser."""
    server = Server(site)
    with (
        serving(server),
        chromium() as browser,
        window(browser, viewport={"width": LAPTOP, "height": 800}) as laptop,
        window(browser, viewport={"width": PHONE, "height": 800}, is_mobile=True) as phone,
    ):
        yield Visitor(laptop, phone, server)


# What sticks out of the page to the right, and is not inside of something that moves by itself.
STICKS_OUT = """
(() => {
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= wide) return [];
  const inside = e => e.parentElement && (e.parentElement === document.body ? false :
    ['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(e.parentElement).overflowX)
    || inside(e.parentElement));
  return [`the page is ${document.documentElement.scrollWidth} wide`,
    ...[...document.querySelectorAll('body *')].filter(e =>
      e.getBoundingClientRect().right > wide + 1 && !inside(e)).slice(0, 5).map(e =>
      `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 60)}`)];
})()
"""

FORMULAS = """
(() => {
  const texts = [...document.querySelectorAll('.math')];
  const set = texts.filter(e => e.querySelector('mjx-container mjx-math *'));
  const bad = document.querySelectorAll('mjx-merror, mjx-utext');
  return [texts.length, set.length, [...bad].map(e => e.textContent.slice(0, 60))];
})()
"""


@pytest.mark.parametrize("name", [*LESSON_PAGES, *(n for n in SAMPLE if n not in LESSON_PAGES)])
def test_page_fits_laptop_and_phone_and_formulas_are_typeset(visitor: Visitor, name: str) -> None:
    page = visitor.open(name)
    assert page.evaluate(STICKS_OUT) == []
    texts, is_set, bad = page.evaluate(FORMULAS)
    assert (is_set, bad) == (texts, [])
    assert bool(texts) == has_formulas(name)
    assert visitor.open(name, PHONE).evaluate(STICKS_OUT) == []


def has_formulas(name: str) -> bool:
    """Tell whether the source of a page has a formula."""
    path = (site_pages.ROOT / name).with_suffix(".ipynb")
    if path.exists():
        cells = json.loads(path.read_text())["cells"]
        return any("$" in "".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    text = path.with_suffix(".md")
    code = r"(?s)```.*?```|`[^`]*`"
    return text.exists() and "$" in re.sub(code, "", text.read_text())


def test_overflowing_content_is_found(visitor: Visitor) -> None:
    page = visitor.open("slides/index.html", PHONE)
    page.evaluate("document.querySelector('article p').style.width = '800px'")
    found = page.evaluate(STICKS_OUT)
    assert found
    assert any(each.startswith("P.") for each in found[1:])


def test_pages_request_nothing_from_other_servers(visitor: Visitor) -> None:
    server = visitor.server
    for name in SAMPLE:
        page = visitor.open(name)
        page.evaluate("document.querySelector('mjx-container')?.focus()")
    visitor.open("search.html?q=all-reduce")
    expect(page.locator("#search-results li").first).to_be_attached(timeout=30_000)
    assert [error for page in visitor.uncaught for error in page.so_far()] == []
    # The last of all reports is of a request that was made on purpose: reports do come.
    page.evaluate("fetch('https://example.org/on-purpose').catch(() => null)")
    wait_until(lambda: "on-purpose" in " ".join(server.refused), 30, "the report of a request")
    refused, server.refused = server.refused, []
    assert [each for each in refused if "on-purpose" not in each] == []


@pytest.mark.parametrize(
    ("width", "scheme"), [(LAPTOP, "light"), (LAPTOP, "dark"), (PHONE, "light")]
)
def test_pages_are_accessible(visitor: Visitor, width: int, scheme: str) -> None:
    wrong = []
    for name in SAMPLE:
        if name == LONGEST and (width, scheme) != (LAPTOP, "light"):
            continue  # axe takes seconds for it
        page = visitor.open(name, width, scheme)
        page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        found = axe.violations(page)
        wrong += [f"{name}: {each}" for each in found if each.impact in ("serious", "critical")]
    assert not wrong, "\n".join(wrong)


def test_solution_opens_by_keyboard(visitor: Visitor) -> None:
    page = visitor.open("notebooks/00_start_here.html")
    fold = page.locator("details.solution").first
    expect(fold).to_have_js_property("open", False)
    fold.locator("summary").press("Enter")
    expect(fold).to_have_js_property("open", True, timeout=10_000)
    expect(fold).not_to_contain_text("NotImplementedError")

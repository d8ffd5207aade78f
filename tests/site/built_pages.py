"""What the files of a built site say of each other: links, pictures, places on a page."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Where an element names a file that the browser fetches by itself.
FETCHED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "srcset"}


@dataclass
class BuiltPage(HTMLParser):
    """One page, read."""

    places: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    without_words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in FETCHED and FETCHED[tag] in values:
            self.fetched.append(values[FETCHED[tag]])
        if tag == "img" and not values.get("alt", "").strip():
            self.without_words.append(values.get("src", "")[:60])


@cache
def read(site: Path) -> dict[str, BuiltPage]:
    """Return all pages of a site, which is finished, by their paths in it."""
    pages = {}
    for path in sorted(site.rglob("*.html")):
        page = BuiltPage()
        page.feed(path.read_text(encoding="utf-8"))
        pages[path.relative_to(site).as_posix()] = page
    return pages


def dead_links(site: Path) -> list[str]:
    """Return every link, picture, script and style sheet that leads to nothing in the site."""
    pages = read(site)
    dead = []
    for name, page in pages.items():
        for target in page.links + page.fetched:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            path, place = unquote(parts.path), unquote(parts.fragment)
            goal = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
            goal = goal if path else name
            if goal.startswith("..") or not (site / goal).is_file():
                dead.append(f"{name}: {target}")
            elif place and goal in pages and place not in pages[goal].places:
                dead.append(f"{name}: {target} (no such place on that page)")
    return dead


def fetched_from_elsewhere(site: Path) -> list[str]:
    """Return whatever a page would have the browser fetch from another host."""
    return [
        f"{name}: {target}"
        for name, page in read(site).items()
        for target in page.fetched
        if urlsplit(target).scheme not in ("", "data") or urlsplit(target).netloc
    ]


def pictures_without_words(site: Path) -> list[str]:
    """Return the pictures that have no alternative text."""
    return [f"{name}: {src}" for name, page in read(site).items() for src in page.without_words]

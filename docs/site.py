#!/usr/bin/env python3
"""Builds the documentation as a website with mdBook, and checks that it has no dead link or missing heading, and
loads nothing from other sites.

    docs/site.py MDBOOK     writes target/site/book; `make site` calls it with .peers/bin/mdbook

Pages keep their paths in the tree, so that links between them stay valid. Other files that they link to are copied,
and a folder becomes a page that lists its files.
"""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "target/site"
SOURCE = SITE / "src"
BOOK = SITE / "book"

LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^\s*```")


def chapters() -> list[str]:
    """Returns the pages that docs/SUMMARY.md lists, relative to the root."""
    summary = (ROOT / "docs/SUMMARY.md").read_text(encoding="utf-8")
    return [os.path.normpath(f"docs/{target}") for _, target, _ in LINK.findall(summary)]


def relink(page: str, text: str) -> str:
    """Returns the text with its links adapted to the site, and copies the files that they lead to."""
    listed = set(chapters())

    def replace(link: re.Match[str]) -> str:
        target = link[2]
        if urlsplit(target).scheme or target.startswith("#"):
            return link[0]
        path, _, anchor = target.partition("#")
        there = os.path.normpath(os.path.join(os.path.dirname(page), path))
        if there in listed:
            # mdBook renames README to index.html, but does not change the links to it.
            path = re.sub(r"README\.md$", "index.md", path)
            return f"{link[1]}{path}{'#' if anchor else ''}{anchor}{link[3]}"
        if (ROOT / there).is_dir():
            listing(there)
            path = path.rstrip("/") + "/files.html"
        elif (ROOT / there).is_file():
            (SOURCE / there).parent.mkdir(parents=True, exist_ok=True)
            # Source files, and pages that are not chapters, are copied unchanged.
            shown = there
            if not there.endswith(".png"):
                # mdBook treats every file with `.md` in its name as a page.
                shown, path, anchor = *(name.replace(".md", "") + ".txt" for name in (there, path)), ""
            shutil.copyfile(ROOT / there, SOURCE / shown)
        return f"{link[1]}{path}{'#' if anchor else ''}{anchor}{link[3]}"

    lines, fenced = [], False
    for line in text.split("\n"):
        if FENCE.match(line):
            fenced = not fenced
        lines.append(line if fenced else LINK.sub(replace, line))
    return "\n".join(lines)


def listing(folder: str) -> None:
    """Writes a page that lists the files of a folder, for links to the folder."""
    (SOURCE / folder).mkdir(parents=True, exist_ok=True)
    names = sorted(entry.name for entry in (ROOT / folder).iterdir() if entry.is_file())
    items = []
    for name in names:
        shutil.copyfile(ROOT / folder / name, SOURCE / folder / f"{name}.txt")
        items.append(f'<li><a href="{name}.txt">{name}</a></li>')
    html = f"<!doctype html><meta charset=utf-8><title>{folder}</title><h1>{folder}</h1><ul>{''.join(items)}</ul>\n"
    (SOURCE / folder / "files.html").write_text(html, encoding="utf-8")


def write_sources() -> None:
    """Writes the input of mdBook."""
    shutil.rmtree(SITE, ignore_errors=True)
    SOURCE.mkdir(parents=True)
    shutil.copyfile(ROOT / "docs/book.toml", SITE / "book.toml")
    for page in chapters():
        text = (ROOT / page).read_text(encoding="utf-8")
        (SOURCE / page).parent.mkdir(parents=True, exist_ok=True)
        (SOURCE / page).write_text(relink(page, text), encoding="utf-8")
    summary = (ROOT / "docs/SUMMARY.md").read_text(encoding="utf-8")
    summary = LINK.sub(lambda link: "](" + os.path.normpath(f"docs/{link[2]}") + ")", summary)
    (SOURCE / "SUMMARY.md").write_text(summary, encoding="utf-8")


class Page(HTMLParser):
    """The links of a page, the files that it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and "href" in given:
            self.loads.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])


def check() -> int:
    """Returns the number of valid links; exits if one is invalid."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in BOOK.rglob("*.html")}
    problems, checked = [], 0
    for path, page in pages.items():
        name = path.relative_to(BOOK)
        # The page for dead links has links relative to the server's root.
        if name.name in ("404.html", "toc.html"):
            continue
        for link in page.loads:
            if urlsplit(link).scheme not in ("", "data") or link.startswith("//"):
                problems.append(f"{name}: loads {link}")
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            checked += 1
            there = path.parent / unquote(parts.path) if parts.path else path
            there = Path(os.path.normpath(there))
            if not there.is_file():
                problems.append(f"{name}: {link}: no such file")
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].anchors:
                problems.append(f"{name}: {link}: no such heading")
    for style in BOOK.rglob("*.css"):
        for load in re.findall(r"url\(['\"]?((?:https?:)?//[^)]*)", style.read_text(encoding="utf-8")):
            problems.append(f"{style.relative_to(BOOK)}: loads {load}")
    if checked < 1000:
        problems.append(f"only {checked} links were found")
    if problems:
        sys.exit("docs/site.py: the site has dead links:\n" + "\n".join(sorted(set(problems))))
    return checked


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: docs/site.py MDBOOK")
    write_sources()
    subprocess.run([sys.argv[1], "build", str(SITE)], check=True)
    checked = check()
    print(f"{BOOK.relative_to(ROOT)}/index.html: {len(chapters())} pages, {checked} valid links")


if __name__ == "__main__":
    main()

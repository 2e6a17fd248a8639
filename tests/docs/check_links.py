#!/usr/bin/env python3
"""Every relative link of the documentation leads to a file, so does every path of a source that a page names, and every page
of docs/ is linked from README.md or a page.

    python3 tests/docs/check_links.py
"""
import pathlib
import re
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)]*)?\)")
# `src/plan/cost.cpp`, `plan/cost.hpp`: from the top, or a public header from its component on.
PATH = re.compile(r"`((?:[a-z0-9_.-]+/)+[A-Za-z0-9_-]+\.(?:cpp|hpp|py|sh|yaml))`")


def missing_sources(page, text):
    if page.name.startswith("adding-a-"):
        return []  # of files that the reader is to write
    places = [TOP, TOP / "include", TOP / "include/cleave", TOP / "src"]
    return [path for path in PATH.findall(text) if not any((place / path).exists() for place in places)]


def main():
    pages = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
    faults, linked = [], set()
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        faults += [f"{page.relative_to(TOP)}: there is no {path}" for path in missing_sources(page, text)]
        for target, _ in LINK.findall(text):
            if "://" in target:
                continue
            file = (page.parent / target).resolve()
            linked.add(file)
            if not file.exists():
                faults.append(f"{page.relative_to(TOP)}: no {target}")
    whole_folders = [folder for folder in linked if folder.is_dir()]
    for page in pages[1:]:
        if page not in linked and page.parent not in whole_folders:
            faults.append(f"no page links to {page.relative_to(TOP)}")
    print("\n".join(faults) or f"{len(pages)} pages, every link and path leads somewhere")
    return 1 if faults else 0


sys.exit(main())

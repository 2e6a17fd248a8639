#!/usr/bin/env python3
"""Every relative link of the documentation leads to a file, and every page of docs/ is linked from README.md or a page.

    python3 tests/docs/check_links.py
"""
import pathlib
import re
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)]*)?\)")


def main():
    pages = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
    faults, linked = [], set()
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
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
    print("\n".join(faults) or f"{len(pages)} pages, every link leads somewhere")
    return 1 if faults else 0


sys.exit(main())

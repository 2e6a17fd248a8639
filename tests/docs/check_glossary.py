#!/usr/bin/env python3
"""The glossary defines every term once.

    python3 tests/docs/check_glossary.py

An entry is an item of a list, which opens with its term, or its terms separated by commas, in bold:
- **downlink, uplink** from the server ...
"""
import pathlib
import re
import sys

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "glossary.md"


def main():
    places, faults = {}, []
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        entry = re.match(r"- \*\*(.+?)\*\* ?(.*)", line)
        if not entry:
            continue
        if not entry[2]:
            faults.append(f"docs/glossary.md:{number}: {entry[1]} is not explained")
        for term in entry[1].split(", "):
            if term.lower() in places:
                faults.append(f"docs/glossary.md:{number}: {term} stands in line {places[term.lower()]} already")
            places[term.lower()] = number
    if not places:
        faults.append("docs/glossary.md: no entry found")
    print("\n".join(faults) or f"{len(places)} terms, each once")
    return 1 if faults else 0


sys.exit(main())

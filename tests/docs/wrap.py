#!/usr/bin/env python3
"""Holds the prose of pages to lines of 120 characters; with --write, breaks the paragraphs anew that have a longer one.

    python3 tests/docs/wrap.py            every page: README.md, docs/ and its folders
    python3 tests/docs/wrap.py --write docs/numerics.md

Tables, code, headings, and words that cannot be broken (a link, an address) stay as they are.
"""
import pathlib
import re
import sys
import unicodedata

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
WIDTH = 120
ITEM = re.compile(r"^(\s*)([-*]|\d+\.) +")
# Markers that Markdown would read as a list, a heading or a quotation at the beginning of a line.
NOT_FIRST = re.compile(r"^([-+*>#=]+|\d+[.)])$")


def columns(text):
    return sum(not unicodedata.combining(character) for character in text)


def words_of(text):
    """Words, where spans of code (`a b`), comments and figures between markers (bench/evidence/pages.py) are one."""
    words, word, ticks = [], "", None
    for part in re.findall(r"<!--figure .*?<!--/figure-->|<!--.*?-->|`+|\s+|(?:(?!<!--)[^`\s])+", text):
        if part[0] == "`":
            ticks = part if ticks is None else None if part == ticks else ticks
            word += part
        elif part.isspace() and ticks is None:
            if word:
                words.append(word)
            word = ""
        else:
            word += " " if part.isspace() else part
    return words + [word] if word else words


def filled(words, first, rest):
    lines, line = [], first + words[0]
    for word in words[1:]:
        if columns(line) + 1 + columns(word) > WIDTH and not NOT_FIRST.match(word):
            lines.append(line)
            line = rest + word
        else:
            line += " " + word
    return lines + [line]


def paragraphs(lines):
    """(first line, its lines, whether they are prose)."""
    fence, start, i = None, 0, 0
    while i < len(lines):
        line = lines[i]
        mark = re.match(r"^\s*(```+|~~~+)", line)
        if fence or mark:
            if mark:
                fence = mark[1] if fence is None else None if mark[1].startswith(fence) else fence
            yield i, [line], False
            i += 1
        elif not line.strip() or re.match(r"^\s*(\||#|<|>|\[[^\]]+\]:)", line) or re.match(r"^( {4}|\t)", line):
            yield i, [line], False
            i += 1
        else:
            end = i + 1
            while end < len(lines) and lines[end].strip() and not ITEM.match(lines[end]) and \
                    not re.match(r"^\s*(\||#|<|>|```|~~~)", lines[end]) and not lines[end - 1].endswith("  "):
                end += 1
            yield i, lines[i:end], True
            i = end


def wrapped(paragraph):
    item = ITEM.match(paragraph[0])
    first = item[0] if item else re.match(r"^\s*", paragraph[0])[0]
    rest = " " * len(item[0]) if item else first
    broken = "  " if paragraph[-1].endswith("  ") else ""
    lines = filled(words_of(" ".join([paragraph[0][len(first):], *paragraph[1:]])), first, rest)
    return [*lines[:-1], lines[-1] + broken]


def wrapped_page(text):
    """The text, and the numbers of the lines where paragraphs began that were broken anew."""
    out, changed = [], []
    for number, paragraph, is_prose in paragraphs(text.splitlines()):
        if is_prose and any(columns(line) > WIDTH for line in paragraph):
            new = wrapped(paragraph)
            if new != paragraph:
                changed.append(number + 1)
            paragraph = new
        out += paragraph
    return "\n".join(out) + "\n", changed


def main():
    arguments = sys.argv[1:]
    write = "--write" in arguments
    names = [name for name in arguments if name != "--write"]
    pages = [pathlib.Path(name).resolve() for name in names] or [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
    faults = []
    for page in pages:
        text = page.read_text()
        new, changed = wrapped_page(text)
        faults += [f"{page.relative_to(TOP)}:{number}: a line of more than {WIDTH} characters" for number in changed]
        if write and new != text:
            page.write_text(new)
    if not write:
        for fault in faults:
            print(fault)
        if faults:
            sys.exit(f"{len(faults)} paragraphs; python3 tests/docs/wrap.py --write PAGE breaks them anew")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Follows a page docs/adding-a-*.md to the letter, in a copy of the sources, and runs the program that comes out.

    python3 tests/docs/follow_page.py PAGE.md     CLEAVE_BUILD: build folder; CLEAVE_SCRATCH: where the copy is made

A comment directly above a code block says what the reader does with it:

    <!-- file: PATH -->               writes it to PATH, which must be new
    <!-- line: PATH above: TEXT -->   puts it above the one line of PATH that has TEXT
    <!-- input: PATH -->              writes it to PATH, which must be new (YAML)
    <!-- run: PATTERN -->             runs those of its lines that call build/release/cleave; what they print must match

Nothing but sources of one component may be touched: that a new thing is one file and one line is what the page promises.
What is new or changed is compiled as CMake compiles that component, and the program is linked again with that in the place
of what was there. A page that has no file, no line or no run is a fault.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("CLEAVE_BUILD", TOP / "build" / "release")).resolve()
MARK = re.compile(r"<!-- (file|line|input|run): (.*?)(?: above: (.*?))? -->")


def steps(page):
    """Yields (line, what, argument, place, text) of every marked block."""
    mark = fence = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if fence is not None:
            if line == "```":
                if mark:
                    yield start, *mark, "\n".join(fence) + "\n"
                mark = fence = None
            else:
                fence.append(line)
        elif line.startswith("```"):
            fence, start = [], number
        elif match := MARK.fullmatch(line):
            mark = match.groups()
        elif line.startswith("<!-- "):
            sys.exit(f"{page}:{number}: unknown comment: {line}")
    if fence is not None:
        sys.exit(f"{page}:{start}: the block is not closed")


def new_file(path, text):
    if path.exists():
        sys.exit(f"{path}: exists already")
    path.write_text(text)


def new_line(path, above, text):
    lines = path.read_text().splitlines(keepends=True)
    places = [i for i, line in enumerate(lines) if above in line]
    if len(places) != 1:
        sys.exit(f"{path}: {len(places)} lines have '{above}'")
    lines[places[0]:places[0]] = [text]
    path.write_text("".join(lines))


def call(command, folder):
    ran = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ran.returncode:
        sys.exit(f"FAILED: {shlex.join(command)}\n{ran.stdout[-4000:]}")
    return ran.stdout


def compiled_files(component):
    """Of each object of the component: how CMake compiles it, without source and object, its source, and its name."""
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        if f"cleave_{component}.dir/" in entry["command"]:
            words = shlex.split(entry["command"])
            name = words[words.index("-o") + 1]
            for option in ("-o", "-c"):
                at = words.index(option)
                del words[at:at + 2]
            yield words, pathlib.Path(entry["file"]), pathlib.Path(name).name


def library_of(component, changed, scratch):
    """The component's library of the build, but for the files of the copy that are new or changed."""
    library = scratch / f"libcleave_{component}.a"
    shutil.copy(BUILD / "src" / component / library.name, library)
    folder = scratch / "objects"
    folder.mkdir()
    todo, found = [], set()
    for words, source, name in compiled_files(component):
        # A file by itself, or one that includes several (a unity build).
        text = source.read_text() if source.is_relative_to(BUILD) else f'#include "{source}"\n'
        parts = {path for path in changed if f'"{TOP / path}"' in text}
        found |= parts
        flags = [word.replace(f"{TOP}/", f"{scratch}/") if word.startswith("-I") and str(BUILD) not in word else word
                 for word in words]
        if parts:
            todo.append((flags, text.replace(f"{TOP}/", f"{scratch}/"), name))
    if not todo:
        sys.exit(f"{BUILD}: no command compiles a source of {component} that the page changes")
    for path in changed - found:  # new ones
        todo.append((todo[0][0], f'#include "{scratch / path}"\n', f"{pathlib.Path(path).stem}-new.cpp.o"))

    def compile_one(work):
        flags, text, name = work
        source = folder / f"{name}.cpp"
        source.write_text(text)
        call([*flags, "-o", str(folder / name), "-c", str(source)], BUILD)

    for work in todo:
        compile_one(work)
    for flags, text, name in todo:
        call(["ar", "rs", str(library), str(folder / name)], scratch)
    return library


def link(component, library, program):
    """Links the program as the build does, with another library for the component."""
    command = call(["ninja", "-t", "commands", "-s", "cleave"], BUILD).splitlines()[-1]
    old = f"src/{component}/libcleave_{component}.a"
    words = [str(library) if word == old else word for word in shlex.split(command) if word not in (":", "&&")]
    if str(library) not in words:
        sys.exit(f"the program is not linked with {old}")
    words[words.index("-o") + 1] = str(program)
    call(words, BUILD)


def run(text, pattern, scratch):
    lines = [line for line in text.splitlines() if line.startswith("build/release/cleave")]
    if not lines:
        sys.exit("the block calls no program")
    printed = call(["bash", "-euo", "pipefail", "-c", "\n".join(lines)], scratch)
    if not re.search(pattern, printed):
        sys.exit(f"FAILED: what it printed does not match '{pattern}':\n{printed[-4000:]}")
    print(f"good: {lines[0]}")


def main():
    page = pathlib.Path(sys.argv[1]).resolve()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="adding.", dir=os.environ.get("CLEAVE_SCRATCH"))).resolve()
    for name in ("src", "include", "inputs", "docs"):
        shutil.copytree(TOP / name, scratch / name)
    shutil.copy(TOP / "README.md", scratch)
    (scratch / "build" / "release").mkdir(parents=True)
    program = scratch / "build" / "release" / "cleave"
    done, changed = set(), set()
    for line, what, argument, above, text in steps(page):
        print(f"{page.relative_to(TOP)}:{line}: {what} {argument}")
        done.add(what)
        if what in ("file", "line"):
            changed.add(argument)
            components = {pathlib.Path(path).parts[1] for path in changed}
            if not re.fullmatch(r"src/\w+/[\w/]+\.cpp", argument) or len(components) > 1:
                sys.exit(f"{argument}: no source of the one component")
        if what in ("file", "input"):
            new_file(scratch / argument, text)
        elif what == "line":
            new_line(scratch / argument, above, text)
        else:
            if not program.exists():
                component = components.pop()
                link(component, library_of(component, changed, scratch), program)
            run(text, argument, scratch)
    if missing := {"file", "line", "run"} - done:
        sys.exit(f"{page}: no block is marked {' or '.join(sorted(missing))}")
    shutil.rmtree(scratch)


main()

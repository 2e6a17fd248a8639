#!/usr/bin/env python3
"""Runs every `bash` block of a page of the documentation, in order, as a reader who stands at the top of the checkout.

    python3 tests/docs/run_page.py PAGE.md        CLEAVE_BUILD: build folder; CLEAVE_SCRATCH: where the copy is made

A comment directly above a block changes how it is run:

    <!-- test: skip: REASON -->      not run; the reason is printed
    <!-- test: append: ARGUMENTS --> added to each line that trains or installs, so that it takes seconds
    <!-- test: code: N -->           the exit code that the page promises; 0 otherwise

The checkout is a folder of links to the real one, but for inputs/ (a copy), so that runs/ and files that a page makes
land in the scratch folder. A page without blocks passes; one with an unclosed block or an unknown comment does not.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
DIRECTIVE = re.compile(r"<!-- test: (skip|append|code): (.*) -->")
SHORTENED = re.compile(r"jobs/run\.sh|cleave train|cmake --install")


def blocks(page):
    """Yields (line, text, directive, argument) of every bash block."""
    directive = argument = None
    fence = None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if fence is not None:
            if line.strip() == "```":
                yield start, "\n".join(fence) + "\n", directive, argument
                fence = directive = argument = None
            else:
                fence.append(line)
        elif line.strip() == "```bash":
            fence, start = [], number
        elif line.startswith("<!-- test:"):
            match = DIRECTIVE.fullmatch(line.strip())
            if not match:
                sys.exit(f"{page}:{number}: unknown comment: {line}")
            directive, argument = match.groups()
    if fence is not None:
        sys.exit(f"{page}:{start}: the block is not closed")


def append_to(text, arguments):
    # Lines that go on with a backslash are one command.
    commands = re.split(r"(?<!\\)\n", text)
    return "\n".join(re.sub(r"(\s+# .*)?$", f" {arguments}", c, count=1) if SHORTENED.search(c) else c for c in commands)


def make_checkout(build):
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="docs.", dir=os.environ.get("CLEAVE_SCRATCH")))
    for name in ("README.md", "docs", "include", "src", "jobs", "bench", "tests", "packaging", "CMakeLists.txt"):
        (scratch / name).symlink_to(TOP / name)
    (scratch / "build").mkdir()
    (scratch / "build" / "release").symlink_to(build)
    shutil.copytree(TOP / "inputs", scratch / "inputs")
    return scratch


def main():
    page = pathlib.Path(sys.argv[1]).resolve()
    scratch = make_checkout(pathlib.Path(os.environ.get("CLEAVE_BUILD", TOP / "build" / "release")).resolve())
    environment = dict(os.environ)
    if os.geteuid() == 0:
        environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    # Of its own, since an mpirun that ends may remove the common one under the feet of another page's that starts.
    sessions = tempfile.mkdtemp(prefix="cleave-ompi.", dir="/tmp")
    environment["OMPI_MCA_orte_tmpdir_base"] = sessions
    failures = 0
    for line, text, directive, argument in blocks(page):
        place = f"{page.relative_to(TOP)}:{line}"
        if directive == "skip":
            print(f"{place}: not run: {argument}")
            continue
        if directive == "append":
            text = append_to(text, argument)
        wanted = int(argument) if directive == "code" else 0
        ran = subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=scratch, env=environment,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             errors="replace")
        good = ran.returncode == wanted
        print(f"{place}: {'good' if good else f'FAILED: exit code {ran.returncode}, not {wanted}'}")
        if not good:
            failures += 1
            print("    " + text.replace("\n", "\n    ") + "\n--- printed:\n" + ran.stdout[-4000:])
    shutil.rmtree(sessions, ignore_errors=True)
    if failures:
        print(f"left for inspection: {scratch}")
        return 1
    shutil.rmtree(scratch)
    return 0


sys.exit(main())

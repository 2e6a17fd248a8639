#!/usr/bin/env python3
"""How much of what a trained model writes is words: the share of a sample's words that occur in the text it learned from.

    python3 bench/words.py RUN/checkpoint-320.h5 README.md 'docs/*.md'     [--tokens 1000] [--seeds 5] [--temperature 0.5]

A word is a run of letters, in any case. A sample's last word is left out, since the sample may end within it. Short words
are easily met by chance, so the share among words of four letters and more stands beside the share among all.
"""

import argparse
import glob
import pathlib
import re
import statistics
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
WORD = re.compile(r"[a-z]+")
LONG = 4


def words(text: str) -> list[str]:
    """The words of a text, in lower case, in order."""
    return WORD.findall(text.lower())


def share(sample: list[str], known: set[str]) -> float:
    """The share of the sample's words that are known; 0 for a sample without words."""
    return sum(word in known for word in sample) / len(sample) if sample else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("text", nargs="+", help="files and globs that the model learned from")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--temperature", default="0.5")
    parser.add_argument("--prompt", default="A device ")
    parser.add_argument("--cleave", default=str(TOP / "build/release/cleave"))
    options = parser.parse_args()

    files = sorted({name for pattern in options.text for name in glob.glob(pattern, recursive=True)})
    if not files:
        parser.error("no file matches " + " ".join(options.text))
    known = {word for name in files for word in words(pathlib.Path(name).read_text(errors="replace"))}
    every, longer = [], []
    for seed in range(1, options.seeds + 1):
        command = [options.cleave, "generate", options.checkpoint, "--prompt", options.prompt, "--tokens",
                   str(options.tokens), "--temperature", options.temperature, "--seed", str(seed)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=600)
        if done.returncode != 0:
            sys.stderr.write(done.stderr.decode(errors="replace"))
            return done.returncode
        sample = words(done.stdout.decode(errors="replace")[len(options.prompt):])[:-1]
        every.append(share(sample, known))
        longer.append(share([word for word in sample if len(word) >= LONG], known))
    print(f"{len(known)} words in {len(files)} files; {options.seeds} samples of {options.tokens} tokens, "
          f"temperature {options.temperature}")
    for name, shares in (("all words", every), (f"words of {LONG} letters and more", longer)):
        print(f"{name}: {statistics.median(shares):.2f} in the median, {min(shares):.2f} to {max(shares):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env bash
# Careless calls lose nothing, and are told what is wrong with them.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

write_input
cd "$scratch"

# Streams that are closed: the files that are opened next get their numbers, and must not get what is printed.
expect_code 0 "closed streams" bash -c '"$@" < /dev/null >&- 2>&-' _ "$CLEAVE" train input.yaml --verbose output.dir=closed
grep -qv '^{.*}$' closed/metrics.jsonl && fail "closed streams: the progress is among the metrics"
expect_code 0 "closed error stream" bash -c '"$@" 2>&-' _ "$CLEAVE" train input.yaml --verbose output.dir=closed
[ "$(wc -l < closed/lock)" -eq 1 ] || fail "closed error stream: the progress is in the lock"
expect_code 1 "closed output" bash -c '"$@" >&-' _ "$CLEAVE" --version

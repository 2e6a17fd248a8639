#!/usr/bin/env bash
# Installs packages, builds everything, and runs the whole test suite through CTest.
#
#   bash jobs/test.sh [--werror] [CTest argument ...]     e.g.  bash jobs/test.sh -L unit     bash jobs/test.sh -R plan
#
# Takes 10 to 25 minutes on 2 cores the first time; `-L fast` is the part for daily work. Works from any folder, as root
# or not (root only for packages).
# Edit: nothing; tests are registered in tests/.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
setup=(--with python3)
[ "${1:-}" != --werror ] || { setup+=(--werror); shift; }
SECONDS=0

bash "$TOP/jobs/setup.sh" "${setup[@]}"
# shellcheck source=mpi-env.sh
. "$TOP/jobs/mpi-env.sh"
printf '\n== Set-up and build took %d s; testing\n' "$SECONDS"
# Most of the longer tests wait, for mpirun, for links and for Slurm, so twice as many run as there are cores.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
code=0
ctest --test-dir "$TOP/build/release" --output-on-failure -j "$((2 * $(nproc)))" "$@" | tee "$log" || code=$?
# CTest counts a file of tests as passed when only some of its cases were skipped.
records=$TOP/build/release/Testing/Temporary/LastTest.log
skipped=$(grep -hE '^\[  SKIPPED \] [A-Za-z_0-9]+[./].* ms\)' "$records" | sort -u || true)
if [ -n "$skipped" ]; then
  printf '\n== Cases that were skipped, in tests that passed; why: %s\n%s\n\n' "$records" "$skipped"
  sed -n '/% tests passed/,$p' "$log"  # CTest's own summary last
fi
exit "$code"

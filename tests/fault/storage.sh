#!/usr/bin/env bash
# The thorough version of the storage tests: every state that a crash may leave, the n-th call failing for every n (of
# allocations one from every place in the program; CLEAVE_FAULT_FULL=every: every one), a
# thousand seeded sequences of runs. CTest runs a brief one (ctest -R 'fault\.(crash|nth_call|several_runs)').
#
#   bash tests/fault/storage.sh [crash | nth_call | several_runs] [GoogleTest argument ...]
#
# Takes some hours in all on 2 cores, most of it the allocations. CLEAVE_FAULT_SEED=N repeats one sequence of several_runs.
# Exit code 0 when all held. Needs a build with tests (bash jobs/setup.sh). Edit: nothing.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=${CLEAVE_BUILD:-$TOP/build/release}/tests/fault
tests=(crash nth_call several_runs)
case ${1:-} in crash | nth_call | several_runs) tests=("$1"); shift ;; esac
for name in "${tests[@]}"; do
  [ -x "$folder/test_fault_$name" ] || { echo "storage: no $folder/test_fault_$name; build first: bash jobs/setup.sh" >&2; exit 1; }
  SECONDS=0
  CLEAVE_FAULT_FULL=${CLEAVE_FAULT_FULL:-1} "$folder/test_fault_$name" "$@"
  echo "$name: $SECONDS s"
done

#!/usr/bin/env bash
# simulate.sh SECONDS [FIRST]: the whole server in a simulated world, against ranks that repeat, withhold, reorder,
# forge, flood, stop reading and die, for so long: one story after another, on every core, each drawn from a seed.
# Stories that end badly are printed with as little in them as still ends badly. Exit code 1 if there were any.
# BUILD: the build folder (build/release)
set -u
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
seconds=${1:?simulate.sh SECONDS [FIRST]}
first=${2:-$(date +%s)000}
simulate=${BUILD:-$top/build/release}/tests/simulation/simulate
[ -x "$simulate" ] || { echo "no $simulate: cmake --build build/release --target simulate"; exit 2; }
# Of each sort of stories (simulate.cpp) a part of the time.
of_core() { # NUMBER
  local sort code=0
  for sort in tiles sample quorum stages; do
    "$simulate" $((first + $1 * 1000000000)) 1000000000 $((1 + seconds / 4)) "$sort" || code=1
  done
  return "$code"
}
pids=()
for ((core = 0; core < $(nproc); ++core)); do
  of_core "$core" &
  pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=1; done
exit "$code"

#!/usr/bin/env bash
# What ranks cost: start-up, memory and processor time of a waiting rank, messages a second.
#
#   bash bench/ranks.sh [RANKS ...]          default: 3 9 33 65
#
# For each number of ranks the model of fleet-1000.yaml on its 1000 devices for one step (start-up: until ranks.json is written,
# which needs every rank; messages: 2 for each of the step's tasklets), then the same with the server's interface slowed
# down to 1 MB/s of real time, during which ranks wait: their processor time over 10 s, and their private memory.
# Takes a minute or so a line. Edit: nothing.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CLEAVE=${CLEAVE:-$TOP/build/release/cleave}
# shellcheck source=../jobs/mpi-env.sh
. "$TOP/jobs/mpi-env.sh"
work=$(mktemp -d)
cleanup() { [ -z "${job:-}" ] || kill "$job" 2> /dev/null || true; rm -rf "$work"; }
trap cleanup EXIT
input=("$TOP/inputs/scale/fleet-1000.yaml" train.steps=1 "output.dir=$work/run" --quiet)

now() { date +%s.%N; }
# calc FORMAT EXPRESSION
calc() { awk "BEGIN {printf \"$1\", $2}"; }
# field NAME: of the first step.
field() { grep -o "\"$1\": [0-9.]*" "$work/run/metrics.jsonl" | head -n 1 | cut -d' ' -f2; }
# start RANKS ARGUMENT...: in the background; waits for ranks.json, and sets begun.
start() {
  local ranks=$1
  shift
  rm -rf "$work/run"
  begun=$(now)
  (launch "$ranks" "$CLEAVE" train "${input[@]}" "$@" > "$work/log" 2>&1) &
  job=$!
  until [ -s "$work/run/ranks.json" ]; do kill -0 "$job" 2> /dev/null || { cat "$work/log"; exit 1; }; sleep 0.02; done
}
pids() { grep -o '"pid": [0-9]*' "$work/run/ranks.json" | cut -d' ' -f2 | tail -n +2; }
# ticks: processor time of all device ranks so far, in hundredths of a second.
ticks() { for pid in $(pids); do cut -d' ' -f14,15 "/proc/$pid/stat"; done | awk '{t += $1 + $2} END {print t}'; }

printf '%6s %12s %18s %20s %16s\n' ranks 'start-up s' 'messages/s' 'waiting, % of core' 'private MiB'
for ranks in "${@:-3 9 33 65}"; do
  # shellcheck disable=SC2086  # the default is a list
  for n in $ranks; do
    start "$n"
    startup=$(calc %.2f "$(now) - $begun")
    wait "$job"
    rate=$(calc %d "2 * $(field tasklets) / $(field wall_s)")
    start "$n" fleet.clock=wall 'server.nic_in=1 MB/s' 'server.nic_out=1 MB/s'
    sleep 5
    before=$(ticks)
    sleep 10
    after=$(ticks)
    memory=$(for pid in $(pids); do awk '/^Private/ {s += $2} END {print s}' "/proc/$pid/smaps_rollup"; done | awk '{t += $1} END {printf "%.1f", t / NR / 1024}')
    kill -KILL "$(grep -m 1 -o '"pid": [0-9]*' "$work/run/ranks.json" | cut -d' ' -f2)"
    wait "$job" || true
    job=
    printf '%6d %12s %18d %20.2f %16s\n' "$n" "$startup" "$rate" "$(calc %.3f "($after - $before) / 10 / ($n - 1)")" "$memory"
  done
done

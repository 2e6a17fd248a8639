#!/usr/bin/env bash
# Kills the server again and again at random moments, checkpoint writes included, and resumes it each time: every resume
# must succeed, and the final parameters must be those of an undisturbed run.
#
#   bash tests/fault/server_death.sh [KILLS]          CLEAVE=/path/to/cleave, FAULT_SEED=n
set -euo pipefail

kills=${1:-50}
RANDOM=${FAULT_SEED:-1}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
steps=$((kills * 60 + 100)) # more than it can do between the kills
write_small_input "$steps" 2
train() { "$CLEAVE" train "$work/input.yaml" --quiet "$@"; }
newest() { find "$work/$1" -name 'checkpoint-*.h5' | sort -V | tail -n 1; }

train output.dir="$work/calm" > /dev/null 2>&1
expected=$("$CLEAVE" info --hash "$(newest calm)")

# Killed after some more steps, and a moment later, so that it is hit wherever it is. Only a run that died of it counts.
killed=0
lines() { wc -l 2> /dev/null < "$work/run/metrics.jsonl" || echo 0; }
for ((try = 0; ; try++)); do
  [ "$try" -lt $((3 * kills + 10)) ] || { echo "the run ends before it can be killed"; exit 1; }
  before=$(lines)
  "$CLEAVE" train "$work/input.yaml" --quiet --resume auto > "$work/log" 2>&1 &
  pid=$!
  if [ "$killed" -lt "$kills" ]; then
    more=$((RANDOM % 5))
    until [ -s "$work/run/ranks.json" ] && [ "$(lines)" -ge $((before + more)) ] || ! kill -0 "$pid" 2>/dev/null; do sleep 0.005; done
    sleep "$(printf '0.%03d' $((RANDOM % 40)))"
    kill -KILL "$pid" 2>/dev/null || true
  fi
  status=0
  wait "$pid" 2>/dev/null || status=$?
  if [ "$status" -eq 0 ]; then break; fi
  [ "$status" -eq 137 ] || { echo "resume $try ended with exit code $status:"; cat "$work/log"; exit 1; }
  killed=$((killed + 1))
done
[ "$killed" -ge "$kills" ] || { echo "killed only $killed times of $kills: nothing is shown"; exit 1; }
got=$("$CLEAVE" info --hash "$(newest run)")
echo "killed $killed times; parameters $got, undisturbed $expected"
[ "$got" = "$expected" ] || exit 1
[ "$(grep -c . "$work/run/metrics.jsonl")" -eq "$steps" ] || { echo "metrics.jsonl does not have one line a step"; exit 1; }

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
write_small_input "$((kills * 6 + 10))" 2
train() { "$CLEAVE" train "$work/input.yaml" --quiet "$@"; }
newest() { find "$work/$1" -name 'checkpoint-*.h5' | sort -V | tail -n 1; }

train output.dir="$work/calm" > /dev/null 2>&1
expected=$("$CLEAVE" info --hash "$(newest calm)")

killed=0
for ((try = 0; ; try++)); do
  "$CLEAVE" train "$work/input.yaml" --quiet --resume auto > "$work/log" 2>&1 &
  pid=$!
  if [ "$killed" -lt "$kills" ]; then
    sleep "$(printf '0.%03d' $((150 + RANDOM % 700)))"
    if kill -KILL "$pid" 2>/dev/null; then killed=$((killed + 1)); fi
  fi
  status=0
  wait "$pid" 2>/dev/null || status=$?
  if [ "$status" -eq 0 ]; then break; fi
  [ "$status" -eq 137 ] || { echo "resume $try ended with exit code $status:"; cat "$work/log"; exit 1; }
done
got=$("$CLEAVE" info --hash "$(newest run)")
echo "killed $killed times; parameters $got, undisturbed $expected"
[ "$got" = "$expected" ] || exit 1
[ "$(grep -c . "$work/run/metrics.jsonl")" -eq $((kills * 6 + 10)) ] || { echo "metrics.jsonl does not have one line a step"; exit 1; }

#!/usr/bin/env bash
# Devices leave and join all the time: 10, 20 and 40 % of 1024 devices an hour, 100 steps, beside an undisturbed step.
# Throughput lost (1 - undisturbed step / mean step) against capacity lost (share of devices away, over the time of the
# steps), and what planning took.
#
#   bash bench/churn_hours.sh [key=value ...]          CLEAVE=/path/to/cleave  STEPS=100  RATES='10 20 40'  LAYERS=4
#
# OPT-13B with LAYERS of its 40 layers, which are all the same: operations take as long as the whole model's, and 100 steps
# can be simulated (with 4 layers, in 5 minutes of processor time a rate; with 1, in 3).
set -euo pipefail
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CLEAVE=${CLEAVE:-$TOP/build/release/cleave}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() { "$CLEAVE" simulate "$TOP/inputs/sim/cleave-1024.yaml" model.n_layer="${LAYERS:-4}" "$@" > /dev/null 2>&1; }
run "$@" --json "$work/calm.json"
echo '| leave an hour | steps | hours | step s | throughput lost | capacity lost | blocks lost | computed again as | added s | planning ms a step | most |'
echo '|---|---|---|---|---|---|---|---|---|---|---|'
for rate in ${RATES:-10 20 40}; do
  session=$(python3 -c "print(100 / $rate)")
  run simulate.steps="${STEPS:-100}" "fleet.churn={mean_session: $session h, mean_absence: 30 min, seed: 1}" "$@" --json "$work/churned.json"
  python3 "$TOP/bench/churn_hours.py" "$rate" "$work/calm.json" "$work/churned.json"
done

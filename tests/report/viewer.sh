#!/usr/bin/env bash
# trace.json in a trace viewer: speedscope, which imports Chrome's trace-event format. Skipped as node.sh says.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
. "$here/node.sh"
. "$here/../e2e/lib.sh"
write_input
printf 'events:\n  - {at: 12 ms, device: 6, kind: leave}\n' > "$scratch/churn.yaml"
expect_code 0 "train" "$CLEAVE" train "$scratch/input.yaml" "fleet.churn={trace: $scratch/churn.yaml}"
node "$here/viewer.js" "$browser" "$scratch/run/trace.json" "$SCREENSHOTS" "$scratch" || fail "the trace viewer"

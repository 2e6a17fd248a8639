#!/usr/bin/env bash
# docs/inputs.md is what the program says of its own declarations, and both say something of the keys that matter.
set -euo pipefail
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
CLEAVE=${CLEAVE:-$TOP/build/release/cleave}
"$CLEAVE" describe inputs | diff -u "$TOP/docs/inputs.md" - ||
  { echo "docs/inputs.md is out of date: $CLEAVE describe inputs > docs/inputs.md"; exit 1; }
for key in '## `model`' '| `steps`' '### `fleet.devices`' '| `[].uplink`' '### `fleet.churn`' '| `partition`'; do
  grep -Fq "$key" "$TOP/docs/inputs.md" || { echo "docs/inputs.md says nothing of $key"; exit 1; }
done

#!/usr/bin/env bash
# The page in headless Chromium. Skipped as node.sh says. Screenshots of 1400 and 400 pixels' width stay in $SCREENSHOTS.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
. "$here/node.sh"
. "$here/../e2e/lib.sh"
write_input
expect_code 0 "train" "$CLEAVE" train "$scratch/input.yaml"
node "$here/browser.js" "$browser" "$scratch/run/report.html" "$SCREENSHOTS" || fail "the page"

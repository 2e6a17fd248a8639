#!/usr/bin/env bash
# The page in headless Chromium. Skipped (77), saying why, without chromium, node, or playwright-core from npm.
# Screenshots of 1400 and 400 pixels' width stay in $SCREENSHOTS.
set -euo pipefail
skip() { echo "skipped: $*"; exit 77; }
browser=$(command -v chromium || command -v chromium-browser) || skip "no chromium"
command -v node > /dev/null && command -v npm > /dev/null || skip "no node and npm"
SCREENSHOTS=${SCREENSHOTS:-$PWD/screenshots}
modules=$SCREENSHOTS/node
mkdir -p "$modules"
[ -d "$modules/node_modules/playwright-core" ] ||
  (cd "$modules" && timeout 120 npm install --no-audit --no-fund --prefix . playwright-core@1.48.2 > npm.txt 2>&1) ||
  skip "npm could not install playwright-core"
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
write_input
expect_code 0 "train" "$CLEAVE" train "$scratch/input.yaml"
NODE_PATH=$modules/node_modules node "$TOP/tests/report/browser.js" "$browser" "$scratch/run/report.html" "$SCREENSHOTS" ||
  fail "the page"

# shellcheck shell=bash
# Chromium, node and two packages of the npm registry for the browser tests. Sourced; sets $browser, $NODE_PATH and
# $SCREENSHOTS. Skips the test (77), saying why, where one of them is not to be had.
skip() { echo "skipped: $*"; exit 77; }
browser=$(command -v chromium || command -v chromium-browser) || skip "no chromium"
command -v node > /dev/null && command -v npm > /dev/null || skip "no node and npm"
# A sandbox may not let it start: that is no fault of a page.
timeout 120 "$browser" --headless --no-sandbox --disable-gpu --dump-dom about:blank 2> /dev/null | grep -q '<html>' || skip "chromium does not start here"
SCREENSHOTS=${SCREENSHOTS:-$PWD/screenshots}
mkdir -p "$SCREENSHOTS/node"
# Tests may start beside each other: one installs, the others wait.
exec 8> "$SCREENSHOTS/node/lock"
flock -w 200 8 || skip "another test is installing packages and does not end"
for package in playwright-core@1.48.2 speedscope@1.25.0; do
  [ -d "$SCREENSHOTS/node/node_modules/${package%@*}" ] ||
    (cd "$SCREENSHOTS/node" && timeout 120 npm install --no-audit --no-fund --prefix . "$package" > npm.txt 2>&1) ||
    skip "npm could not install $package (see $SCREENSHOTS/node/npm.txt)"
done
exec 8>&-
export NODE_PATH=$SCREENSHOTS/node/node_modules

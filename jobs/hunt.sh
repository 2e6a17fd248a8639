#!/usr/bin/env bash
# Looks for settings that fail: models, fleets, memories, layouts, wires, checks, losses and liars drawn at random, other ones
# each time, and answers lost, held back, changed or refused, for so many minutes. What it asks for is what
# tests/inprocess/any_setting_test.cpp, tests/inprocess/overtaking_test.cpp, tests/unit/sched/any_fleet_test.cpp and
# tests/unit/sched/stage_books_test.cpp ask of the few settings that every test run tries.
#
#   bash jobs/hunt.sh [MINUTES]                 default 5
#   HUNT_FIRST=20003 bash jobs/hunt.sh 1        from this setting on
#
# Prints the settings that failed, each with the command that tries it again. Exit code 0 when none did, otherwise 3.
# Wants jobs/test.sh or jobs/setup.sh to have built the tests. Two cores. Edit: nothing.
set -euo pipefail

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
minutes=${1:-5}
[[ $minutes =~ ^[0-9]+$ ]] || { echo "hunt: MINUTES is a number" >&2; exit 2; }
settings=$TOP/build/release/tests/inprocess/test_inprocess fleets=$TOP/build/release/tests/test_sched
for program in "$settings" "$fleets"; do
  [ -x "$program" ] || { echo "hunt: there is no $program; bash jobs/test.sh -L fast builds it" >&2; exit 1; }
done
until=$((SECONDS + 60 * minutes))
first=${HUNT_FIRST:-$(date +%s)}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# hunt VARIABLE PROGRAM COUNT TEST...: batches of so many, one test after another, until the time is over.
hunt() {
  local variable=$1 program=$2 count=$3 from=$first test
  shift 3
  while [ $SECONDS -lt $until ]; do
    for test in "$@"; do
      env "$variable=$from:$count" timeout $((60 * minutes + 600)) "$program" --gtest_filter="$test" > "$out/$test.txt" 2>&1 && continue
      # The expectation that most fleets are large enough is that of the usual settings.
      grep -E '(setting|fleet) [0-9]+' "$out/$test.txt" | grep -oE '(setting|fleet) [0-9]+: .*' | sort -u |
        sed "s|^\(setting\|fleet\) \([0-9]*\)|$variable=\2:1 ${program#"$TOP/"} --gtest_filter=$test # &|" >> "$out/failed"
      [[ $(tail -n 20 "$out/$test.txt") == *"[==========]"* ]] || echo "$variable=$from:$count ${program#"$TOP/"} --gtest_filter=$test # ended" >> "$out/failed"
    done
    echo "$variable $from to $((from + count - 1))" >> "$out/tried-$variable"
    from=$((from + count))
  done
}
touch "$out/failed"
hunt CLEAVE_SETTINGS "$settings" 40 AnySetting.TrainsToTheSameBits AnySetting.TrainsToTheSameBitsWhateverIsLost AnySetting.LiarsLeaveNoTrace &
hunt CLEAVE_DEEDS "$settings" 40 Overtaking.AnyFewDeedsAtOnce &
hunt CLEAVE_FLEETS "$fleets" 10 AnyFleet.StepsEndNoSoonerThanTheirBound AnyFleet.StepsEndWhateverIsLost &
hunt CLEAVE_STAGE_BOOKS "$fleets" 100 StageBooks.AreRightBetweenAnyTwoEvents &
wait
for tried in "$out"/tried-*; do echo "$(wc -l < "$tried") batches of $(basename "${tried#*tried-}"), from ${first} on"; done
[ -s "$out/failed" ] || { echo "none failed"; exit 0; }
sort -u "$out/failed"
exit 3

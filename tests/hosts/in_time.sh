#!/usr/bin/env bash
# What is held against the clock, side by side: both wait most of the time, and nothing else may run beside them.
#
#   bash tests/hosts/in_time.sh     needs FAR_LINK, as links.sh
# Code 77: one of them is skipped, and says why.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
here=$(dirname "${BASH_SOURCE[0]}")
bash "$here/links.sh" > "$folder/links" 2>&1 &
links=$!
kills=0
bash "$here/kills.sh" 3 > "$folder/kills" 2>&1 || kills=$? # three losses; `kills.sh 60` has sixty
wait $links
links=$?
cat "$folder/links" "$folder/kills"
for code in $links $kills; do
  [ "$code" -eq 0 ] || [ "$code" -eq 77 ] || exit 1
done
[ "$links" -ne 77 ] && [ "$kills" -ne 77 ] || exit 77

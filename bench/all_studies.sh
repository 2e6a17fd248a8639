#!/usr/bin/env bash
# Makes every study of `cleave simulate` that the documentation quotes, and the pages, anew.
#
#   bash bench/all_studies.sh            resumes: what this program made before is kept; a night on 2 cores
#   bash bench/all_studies.sh --again cleave,cleave-paper
#                                        of what another program made, only cleave's points: three quarters of an hour
#   bash bench/all_studies.sh --brief    two cases of each study, one seed, no slow planner; results go to runs/brief
#
# CLEAVE=/path/to/cleave  TEXT=tinyshakespeare.txt (loss against time is left out without)  JOBS=2  MINUTES=N (each study starts nothing after so many)
set -euo pipefail
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
given=(--program "${CLEAVE:-$TOP/build/release/cleave}" --jobs "${JOBS:-2}" ${MINUTES:+--minutes "$MINUTES"} "$@")
status=0
for study in stages reproduce compare; do
  python3 "$TOP/bench/$study.py" "${given[@]}" || status=$?
done
# This one trains, too, and needs a text and PyTorch.
if [ -n "${TEXT:-}" ]; then
  python3 "$TOP/bench/loss_time.py" "$TEXT" "${given[@]}" || status=$?
else
  echo "all_studies: bench/loss_time.py is left out: TEXT=tinyshakespeare.txt would name what it trains on" >&2
fi
exit "$status"

#!/usr/bin/env bash
# Makes every study of `cleave simulate` that the documentation quotes, and the pages, anew.
#
#   bash bench/all_studies.sh            resumes: what this program made before is kept; a night on 2 cores
#   bash bench/all_studies.sh --again cleave,cleave-paper
#                                        of what another program made, only cleave's points: nineteen minutes with AVX-512, three quarters of an hour with AVX2
#   bash bench/all_studies.sh --brief    two cases of each study, one seed, no slow planner; results go to runs/brief
#
# CLEAVE=/path/to/cleave  TEXT=tinyshakespeare.txt (without, its curves of loss against time stay)  JOBS=2  MINUTES=N (each study starts nothing after so many)
set -euo pipefail
TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
given=(--program "${CLEAVE:-$TOP/build/release/cleave}" --jobs "${JOBS:-2}" ${MINUTES:+--minutes "$MINUTES"} "$@")
status=0
for study in stages reproduce compare; do
  python3 "$TOP/bench/$study.py" "${given[@]}" || status=$?
done
# With a text this one trains, too, and needs PyTorch. It has no brief cases.
if [ -n "${TEXT:-}" ]; then
  python3 "$TOP/bench/loss_time.py" "$TEXT" "${given[@]}" || status=$?
elif [[ " $* " != *" --brief "* ]]; then
  echo "all_studies: the curves of loss against time stay; TEXT=tinyshakespeare.txt would train them" >&2
  python3 "$TOP/bench/loss_time.py" "${given[@]}" || status=$?
fi
exit "$status"

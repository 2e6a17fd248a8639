#!/usr/bin/env bash
# The memory that a run says beforehand that its server will take is what it then takes, within 10 %, on the model and the
# fleet of the quickstart.
#
#   bash tests/e2e/memory.sh RANKS
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

expect_code 0 "train" cleave_on "$1" train "$TOP/inputs/quickstart.yaml" train.steps=3 train.eval_every=3 \
  train.eval_batches=2 "output.dir=$scratch/run"
line=$(grep -a 'peak memory: server' "$scratch/out") || fail "the run does not say what memory it took"
awk -v line="$line" 'BEGIN {
  if (!match(line, /server [0-9.]+ MiB \(predicted [0-9.]+ MiB\)/)) { print "no figures in: " line; exit 1 }
  split(substr(line, RSTART, RLENGTH), word, /[ ()]+/)
  measured = word[2]; predicted = word[5]
  if (predicted < 0.9 * measured || predicted > 1.1 * measured) { print "not within 10 %: " line; exit 1 }
}' || fail "the forecast of the server's memory"

#!/usr/bin/env bash
# Runs over several starts of one folder: going back, going on from another folder, going on with other settings. What was
# reported saved is there, and `auto` goes on with the branch last run.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

write_input
run() { expect_code 0 "$1" "$CLEAVE" train "$scratch/input.yaml" --quiet "${@:2}"; }
there() { [ -s "$scratch/$1" ] || fail "$1 is missing"; }
gone() { [ ! -e "$scratch/$1" ] || fail "$1 should not be there"; }
steps_of() { grep -Eo '"step": ?[0-9]+' "$scratch/$1/metrics.jsonl" | grep -Eo '[0-9]+' | tr '\n' ' '; }
common=(train.eval_every=0 train.lr_decay_steps=12)

# 1. Back to step 4 of a run of 12: the new run's checkpoints stay, the old run's are beside it.
run "first" "${common[@]}" train.steps=12 checkpoint.keep=9
run "back" "${common[@]}" train.steps=8 checkpoint.keep=1 --resume "$scratch/run/checkpoint-4.h5"
expect_text "the move is announced" 'is now in .*run\.1'
for file in run/checkpoint-8.h5 run/checkpoint-4.h5 run.1/checkpoint-12.h5 run.1/metrics.jsonl; do there $file; done
gone run/checkpoint-12.h5
[ "$(steps_of run)" = "1 2 3 4 5 6 7 8 " ] || fail "metrics of the new branch: $(steps_of run)"
[ "$(steps_of run.1)" = "1 2 3 4 5 6 7 8 9 10 11 12 " ] || fail "metrics of the old branch: $(steps_of run.1)"
run "auto after going back" "${common[@]}" train.steps=10 --resume auto
expect_text "it goes on with the branch last run" 'resuming after step 8 '
# The branch that was moved aside can be gone on with, to the same bits.
run "the old branch" "${common[@]}" train.steps=12 --resume auto output.dir="$scratch/run.1"
run "the whole run" "${common[@]}" train.steps=12 output.dir="$scratch/whole"
[ "$(hash_of "$scratch/run.1" 12)" = "$(hash_of "$scratch/whole" 12)" ] || fail "the old branch: other bits"

# 2. From another folder: all of the folder is moved aside, and the checkpoint comes, so that auto finds it at once.
run "elsewhere" "${common[@]}" train.steps=6 output.dir="$scratch/other"
run "from elsewhere" "${common[@]}" train.steps=8 --resume "$scratch/other/checkpoint-4.h5"
there run.2/checkpoint-10.h5
[ "$(steps_of run.2)" = "1 2 3 4 5 6 7 8 9 10 " ] || fail "metrics of run.2: $(steps_of run.2)"
there other/checkpoint-6.h5
there other/checkpoint-4.h5
[ "$(hash_of "$scratch/run" 8)" = "$(hash_of "$scratch/run.2" 8)" ] || fail "from elsewhere: other bits"
run "auto after that" "${common[@]}" train.steps=9 --resume auto
expect_text "auto" 'resuming after step 8 '

# 3. Other settings: each is named, and refused, unless asked for.
head -c 20000 /dev/zero | tr '\0' 'x' > "$scratch/other.txt"
for change in train.lr=2e-2 train.batch=8 plan.wire=bf16 train.beta2=0.9 train.seed=7 "data.text=$scratch/other.txt" \
  data.val_fraction=0.2 server.gemm_kernels=generic train.lr_decay_steps=99; do
  expect_code 2 "$change" "$CLEAVE" train "$scratch/input.yaml" --quiet "${common[@]}" train.steps=10 --resume auto "$change"
  key=${change%%=*}
  expect_text "$change" "${key/data.text/data} .* -> .*--resume-with-changes"
done
gone run/checkpoint-10.h5
run "with changes" "${common[@]}" train.steps=10 --resume auto --resume-with-changes train.lr=2e-2
expect_text "the change is named" 'train.lr 0.01 -> 0.02'
run "the change stays" "${common[@]}" train.steps=11 --resume auto train.lr=2e-2
expect_code 2 "alone it means nothing" "$CLEAVE" train "$scratch/input.yaml" --resume-with-changes

# 4. A longer or shorter run keeps the schedule that it began with, where the input does not give one.
run "eight steps" train.eval_every=0 train.steps=8 checkpoint.keep=9 output.dir="$scratch/eight"
run "shorter" train.eval_every=0 train.steps=6 output.dir="$scratch/eight" --resume "$scratch/eight/checkpoint-4.h5"
expect_text "the schedule" 'train.lr_decay_steps stays 8'
grep -q 'lr_decay_steps: 8  # checkpoint-4.h5' "$scratch/eight/input.yaml" || fail "input.yaml does not say whose schedule"
run "longer again" train.eval_every=0 train.steps=8 output.dir="$scratch/eight" --resume auto
run "at once" train.eval_every=0 train.steps=8 output.dir="$scratch/at-once"
[ "$(hash_of "$scratch/eight" 8)" = "$(hash_of "$scratch/at-once" 8)" ] || fail "shorter and longer again: other bits"

# 5. A new run over checkpoints whose metrics are gone moves them too; links under our names are not followed.
mkdir "$scratch/bare" && cp "$scratch/eight/checkpoint-8.h5" "$scratch/bare/"
run "over bare checkpoints" "${common[@]}" train.steps=2 output.dir="$scratch/bare"
there bare.1/checkpoint-8.h5
mkdir "$scratch/trap" && echo kept > "$scratch/precious"
for name in checkpoint-2.h5.tmp input.yaml.tmp ranks.json.tmp; do ln -s "$scratch/precious" "$scratch/trap/$name"; done
run "links under temporary names" "${common[@]}" train.steps=2 output.dir="$scratch/trap"
ln -sf "$scratch/precious" "$scratch/trap/lock"
expect_code 1 "a lock that is a link" "$CLEAVE" train "$scratch/input.yaml" --quiet train.steps=2 output.dir="$scratch/trap" --resume auto
expect_text "a lock that is a link" 'it is a link'
[ "$(cat "$scratch/precious")" = kept ] || fail "a file behind a link was written"

# 6. A run that is about to end saves once more, and deletes what it has no room for, while the next one starts: that one
# goes on from there. The earlier run is a stand-in that has the folder's lock.
run "before" "${common[@]}" train.steps=6 checkpoint.keep=9 output.dir="$scratch/ending"
run "one more" "${common[@]}" train.steps=8 checkpoint.keep=9 output.dir="$scratch/ended"
exec 9>> "$scratch/ending/lock"
flock 9
(
  sleep 2
  cp "$scratch/ended/checkpoint-8.h5" "$scratch/ending" && cp "$scratch/ended/metrics.jsonl" "$scratch/ending"
  rm "$scratch"/ending/checkpoint-[46].h5
) &
exec 9>&-
run "while another run ends" "${common[@]}" train.steps=10 --resume auto output.dir="$scratch/ending"
expect_text "while another run ends" 'resuming after step 8 '
wait
[ "$(steps_of ending)" = "1 2 3 4 5 6 7 8 9 10 " ] || fail "metrics of a run that ended late: $(steps_of ending)"
there ending/checkpoint-10.h5
gone ending.1

# 7. Names tell which checkpoint is the newest, so one that bears another's is not gone on from.
cp -r "$scratch/at-once" "$scratch/renamed"
mv "$scratch/renamed/checkpoint-6.h5" "$scratch/renamed/checkpoint-100.h5"
for from in auto "$scratch/renamed/checkpoint-100.h5"; do
  expect_code 2 "a name of another step" "$CLEAVE" train "$scratch/input.yaml" --quiet "${common[@]}" train.steps=12 --resume "$from" output.dir="$scratch/renamed"
  expect_text "a name of another step" 'checkpoint-100\.h5 is of step 6'
done
there renamed/checkpoint-8.h5

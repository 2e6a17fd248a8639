#!/usr/bin/env bash
# The other commands work on what `train` leaves: info, generate, export, import, plan, simulate; and every shipped
# input is sound.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

write_input
expect_code 0 "train" "$CLEAVE" train "$scratch/input.yaml"
for file in metrics.jsonl ranks.json input.yaml log.txt checkpoint-2.h5 checkpoint-4.h5; do
  [ -s "$scratch/run/$file" ] || fail "the run folder has no $file"
done
for field in step loss lr grad_norm tokens time_s lower_bound_s floor_s wall_s bytes_down bytes_up devices tasklets lost redone \
  rejected recovery_s energy_J; do
  [ "$(grep -c "\"$field\":" "$scratch/run/metrics.jsonl")" -eq 4 ] || fail "metrics.jsonl lacks $field"
done
[ "$(grep -c '"val_loss":' "$scratch/run/metrics.jsonl")" -eq 2 ] || fail "val_loss is not on evaluation steps alone"
grep -q '# file' "$scratch/run/input.yaml" || fail "the effective input does not say where values come from"
checkpoint=$scratch/run/checkpoint-4.h5

expect_code 0 "info" "$CLEAVE" info "$checkpoint"
expect_text "info" 'transformer\.h\.0\.attn\.c_attn\.weight|gpt2'
expect_code 0 "generate" "$CLEAVE" generate "$checkpoint" --prompt 'line ' --tokens 20 --seed 3
cp "$scratch/out" "$scratch/first"
expect_code 0 "generate" "$CLEAVE" generate "$checkpoint" --prompt 'line ' --tokens 20 --seed 3
cmp -s "$scratch/out" "$scratch/first" || fail "the same seed writes another text"
expect_code 0 "generate" "$CLEAVE" generate "$checkpoint" --prompt 'line ' --tokens 20 --seed 4
cmp -s "$scratch/out" "$scratch/first" && fail "another seed writes the same text"

for bad in --temperature=nan --temperature=-1 --seed=-1 --seed=18446744073709551616 --seed=5x; do
  expect_code 2 "generate $bad" "$CLEAVE" generate "$checkpoint" --tokens 3 "$bad"
done

expect_code 0 "export" "$CLEAVE" export "$checkpoint" "$scratch/model.safetensors"
expect_code 0 "import" "$CLEAVE" import "$scratch/model.safetensors" "$scratch/imported.h5"
[ "$("$CLEAVE" info --hash "$scratch/imported.h5")" = "$(hash_of "$scratch/run" 4)" ] ||
  fail "export and import change the parameters"
ln -sf "$checkpoint" "$scratch/link.h5"
for to in "$checkpoint" "$scratch/link.h5"; do
  expect_code 2 "export onto itself" "$CLEAVE" export "$checkpoint" "$to"
  expect_text "export onto itself" "are one file"
done
expect_code 2 "import onto itself" "$CLEAVE" import "$scratch/model.safetensors" "$scratch/model.safetensors"
[ "$("$CLEAVE" info --hash "$checkpoint")" = "$(hash_of "$scratch/run" 4)" ] || fail "a checkpoint is gone"

expect_code 0 "plan" "$CLEAVE" plan "$scratch/input.yaml" --json "$scratch/plan.json"
grep -q '"lower_bound_s"' "$scratch/plan.json" || fail "plan.json has no bound"
# Without emulation the layout is not the one that the declared links and rates make quickest; plan says what train takes.
for batch in 8 2; do
  off=("$TOP/inputs/speed/six-layers.yaml" "data.text=$scratch/text" model.n_layer=1 model.seq_len=64 "train.batch=$batch" train.steps=1
    "output.dir=$scratch/off-$batch")
  expect_code 0 "clock off: train" "$CLEAVE" train "${off[@]}"
  expect_code 0 "clock off: plan" "$CLEAVE" plan "${off[@]}" --json "$scratch/off.json"
  layout=$([ "$batch" -eq 8 ] && echo stages || echo tiles)
  grep -q "plan.layout is auto: $layout" "$scratch/off-$batch/log.txt" || fail "clock off, batch $batch: train does not take $layout"
  grep -q "\"layout\": \"$layout\"" "$scratch/off.json" || fail "clock off, batch $batch: plan does not say $layout"
done
# Why auto is not what would be quicker.
for mode in sample all; do
  expect_code 0 "plan with $mode" "$CLEAVE" plan "$scratch/input.yaml" "data.text=$scratch/text" verify.mode=$mode
  expect_text "plan with $mode" "plan.layout is auto: tiles, since stages do not have verify.mode $mode"
done
# Without a wish each layout is checked its own way, and the quicker one is taken.
sed '/^verify:/d' "$scratch/input.yaml" > "$scratch/open.yaml"
grep -q 'verify' "$scratch/open.yaml" && fail "the input still says how to verify"
for layout in auto tiles stages; do
  expect_code 0 "verify auto: train, $layout" "$CLEAVE" train "$scratch/open.yaml" "data.text=$scratch/text" train.steps=1 \
    "plan.layout=$layout" "output.dir=$scratch/open-$layout"
  expect_code 0 "verify auto: plan, $layout" "$CLEAVE" plan "$scratch/open.yaml" "data.text=$scratch/text" "plan.layout=$layout" \
    --json "$scratch/open.json"
  taken=$(sed -n 's/^ *"layout": "\([a-z]*\)".*/\1/p' "$scratch/open.json")
  expect_text "verify auto: plan, $layout" "verify.mode is auto: "
  [ "$layout" = auto ] || [ "$taken" = "$layout" ] || fail "plan.layout=$layout: plan takes $taken"
  mode=$([ "$taken" = stages ] && echo quorum || echo sample)
  grep -q "verification ($mode)" "$scratch/open-$layout/log.txt" || fail "plan.layout=$layout: $taken are not verified by $mode"
done
[ "$(hash_of "$scratch/open-tiles" 1)" = "$(hash_of "$scratch/open-stages" 1)" ] || fail "stages have other bits than tiles"
expect_code 0 "verify auto with rollback" "$CLEAVE" plan "$scratch/open.yaml" "data.text=$scratch/text" verify.rollback=2
expect_text "verify auto with rollback" "plan.layout is auto: tiles, since verify.rollback is on"
expect_code 0 "simulate" "$CLEAVE" simulate "$scratch/input.yaml" --json "$scratch/simulate.json"
grep -q '"step_s"' "$scratch/simulate.json" || fail "simulate.json has no time"
# Whatever is written under a fixed name is told of.
command -v python3 > /dev/null || { echo "skipped: no python3"; exit 77; }
expect_code 0 "simulate a loss" "$CLEAVE" simulate "$scratch/input.yaml" simulate.loss.devices=1 plan.layout=stages model.n_layer=6 --json "$scratch/loss.json"
python3 - "$TOP/docs/interface.md" "$scratch/run/metrics.jsonl" "$scratch/simulate.json" "$scratch/loss.json" << 'PY' || fail "docs/interface.md does not name a key"
import json, re, sys

told = set(re.findall(r"\w+", open(sys.argv[1]).read()))
lines = [json.loads(line) for line in open(sys.argv[2])]
for value in sys.argv[3:]:
    lines += json.load(open(value))
missing = set()
def look(value, own):
    if isinstance(value, list):
        for one in value:
            look(one, own)
    elif isinstance(value, dict):
        for key, one in value.items():
            if not own and key not in told:
                missing.add(key)
            look(one, own or key in ("figures", "phases_s", "dilation_by_host"))  # whose keys are a method's, a host's
look(lines, False)
sys.exit(f"not in docs/interface.md: {sorted(missing)}" if missing else 0)
PY

expect_code 0 "version" "$CLEAVE" --version
for command in train check plan simulate generate info import export; do
  expect_code 0 "$command --help" "$CLEAVE" "$command" --help
done
while IFS= read -r input; do
  case $input in # what is simulated need not fit this host
    */inputs/traces/*) ;; # events of a fleet, not an input
    */inputs/finetune/*) # what it starts from is the user's to bring
      expect_code 2 "$input" "$CLEAVE" train "$input" --dry-run "data.text=$scratch/text"
      expect_text "$input" 'model\.init: model\.h5: no such file'
      ;;
    */inputs/sim/* | */inputs/dtfm/*) expect_code 0 "$input" "$CLEAVE" simulate "$input" --dry-run ;;
    *) expect_code 0 "$input" "$CLEAVE" train "$input" --dry-run "data.text=$scratch/text" ;;
  esac
done < <(find "$TOP/inputs" -name '*.yaml' -not -path '*/runs/*')

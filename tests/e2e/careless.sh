#!/usr/bin/env bash
# Careless calls lose nothing, and are told what is wrong with them.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

write_input
cd "$scratch"

# Streams that are closed: the files that are opened next get their numbers, and must not get what is printed.
expect_code 0 "closed streams" bash -c '"$@" < /dev/null >&- 2>&-' _ "$CLEAVE" train input.yaml --verbose output.dir=closed
grep -qv '^{.*}$' closed/metrics.jsonl && fail "closed streams: the progress is among the metrics"
expect_code 0 "closed error stream" bash -c '"$@" 2>&-' _ "$CLEAVE" train input.yaml --verbose output.dir=closed
[ "$(wc -l < closed/lock)" -eq 1 ] || fail "closed error stream: the progress is in the lock"
expect_code 1 "closed output" bash -c '"$@" >&-' _ "$CLEAVE" --version

# Names with '=' are names, not overrides, where no input is given or such a file exists.
expect_code 0 "a run" "$CLEAVE" train input.yaml --quiet output.dir=lr=1 train.eval_every=0
cp input.yaml lr=1.yaml
expect_code 0 "info lr=1/..." "$CLEAVE" info lr=1/checkpoint-4.h5
expect_code 0 "generate lr=1/..." "$CLEAVE" generate lr=1/checkpoint-4.h5 --tokens 3
expect_code 0 "report lr=1" "$CLEAVE" report lr=1 -o lr.html
expect_code 0 "export lr=1/..." "$CLEAVE" export lr=1/checkpoint-4.h5 lr=1/model.safetensors
expect_code 0 "train lr=1.yaml" "$CLEAVE" train lr=1.yaml train.steps=3 --dry-run
expect_text "train lr=1.yaml" 'steps: 3  # command line'
expect_code 2 "info of nothing" "$CLEAVE" info a=b
expect_text "info of nothing" 'a=b: no such file'

# A run beside its own input and text: neither is replaced or moved away, nor are runs in folders there.
mkdir -p beside/other && cp -r text beside && cp input.yaml beside/mine.yaml && cp input.yaml beside/input.yaml
for command in train "train --dry-run" simulate; do
  # shellcheck disable=SC2086  # a command and its option
  expect_code 2 "$command beside its input.yaml" "$CLEAVE" $command beside/input.yaml --quiet output.dir=beside
  expect_text "$command beside its input.yaml" 'output\.dir: .*beside/input\.yaml'
done
cmp -s input.yaml beside/input.yaml || fail "an input was replaced"
rm beside/input.yaml
for _ in 1 2 3; do expect_code 0 "beside its input" "$CLEAVE" train beside/mine.yaml --quiet output.dir=beside train.steps=2; done
for file in beside/mine.yaml beside/text beside/other beside/checkpoint-2.h5 beside.{1,2}/{checkpoint-2.h5,metrics.jsonl,report.html}; do
  [ -e "$file" ] || fail "beside its input: $file is gone"
done
expect_code 0 "from its own record" "$CLEAVE" train beside/input.yaml --quiet --resume auto

# What an input names is not replaced by a result, and a folder holds what the last simulation in it wrote.
printf 'events:\n  - {at: 1 ms, device: 0, kind: leave}\n' > events.yaml
cp events.yaml events.kept
expect_code 2 "--json over a trace" "$CLEAVE" simulate input.yaml --quiet 'fleet.churn={trace: events.yaml}' --json events.yaml
expect_text "--json over a trace" 'one file, which would be lost'
cmp -s events.yaml events.kept || fail "--json replaced a trace"
cp run.txt mine.txt 2> /dev/null || printf 'some text of my own, and more of it\n' > mine.txt
expect_code 2 "--json over the text" "$CLEAVE" simulate input.yaml --quiet data.text=mine.txt --json mine.txt
expect_code 2 "plan --json over the text" "$CLEAVE" plan input.yaml data.text=mine.txt --json mine.txt
mkdir many && cp mine.txt many/mine.txt && cp events.yaml many/events.yaml
for arguments in 'plan input.yaml data.text=many --json many/mine.txt' \
  'simulate input.yaml --quiet data.text=many/*.txt --json many/mine.txt' 'calibrate input.yaml data.text=many -o many/mine.txt' \
  'calibrate input.yaml fleet.churn.trace=many/events.yaml -o many/events.yaml'; do
  # shellcheck disable=SC2086  # a command and its arguments
  set -f; expect_code 2 "$arguments" "$CLEAVE" $arguments; set +f  # a pattern is the program's to expand
  expect_text "$arguments" 'which would be lost'
done
cmp -s mine.txt many/mine.txt && cmp -s events.yaml many/events.yaml || fail "a result replaced what a folder holds"
mkdir own && echo '{}' > own/trace.json && echo '{}' > own/layout.json
expect_code 0 "a rival among files of somebody's own" "$CLEAVE" simulate input.yaml --quiet --output own --system data-parallel
[ -e own/trace.json ] && [ -e own/layout.json ] || fail "a simulation deleted files of somebody's own"
expect_code 2 "two names for a folder" "$CLEAVE" simulate input.yaml --quiet --output one output.dir=two
expect_code 0 "a folder in a map" "$CLEAVE" simulate input.yaml --quiet 'output={dir: mapped}'
[ -e mapped/simulate.json ] || fail "a folder in a map: nothing there"
expect_code 2 "calibrate of no input" "$CLEAVE" calibrate train.steps=3
expect_code 2 "a default of no key" "$CLEAVE" train input.yaml --dry-run train.stpes=~
expect_text "a default of no key" 'train\.stpes: unknown key'
expect_code 2 "hardly any rate" "$CLEAVE" train input.yaml --quiet fleet.churn.slow_fraction=1 fleet.churn.slow_factor=1e-15
expect_text "hardly any rate" 'fleet\.churn\.slow_factor'
expect_code 2 "hardly any patience" "$CLEAVE" train input.yaml --quiet fleet.patience=1ms
expect_text "hardly any patience" 'fleet\.patience'
expect_code 0 "a simulation" "$CLEAVE" simulate input.yaml --quiet --output same
[ -e same/timeline.json ] || fail "a simulation: no timeline"
expect_code 0 "another one there" "$CLEAVE" simulate input.yaml --quiet --output same --system data-parallel
[ ! -e same/timeline.json ] && [ ! -e same/trace.json ] || fail "another one there: the timeline of the first one stayed"
rm -r same/simulate.json && mkdir same/simulate.json
expect_code 1 "a folder in the place of a file" "$CLEAVE" report same
expect_text "a folder in the place of a file" 'it is a folder'

# What a run writes is no text of the next one; and its record says all that it was.
mkdir -p around && cp -r text around && sed 's/text: text/text: ./; s/tokenizer: byte/tokenizer: char/' input.yaml > around/in.yaml
for _ in 1 2; do expect_code 0 "results beside the text" "$CLEAVE" train around/in.yaml --quiet output.dir=around/results train.steps=2; done
expect_code 0 "results beside the text, resumed" "$CLEAVE" train around/in.yaml --quiet output.dir=around/results --resume auto
grep -Eq '  vocab_size: [0-9]+  # the tokenizer' around/results/input.yaml || fail "the record does not say the vocabulary"
cp around/results/input.yaml again.yaml
expect_code 0 "on from the record" "$CLEAVE" train again.yaml --quiet --resume auto train.steps=5

# A training does not begin among the files of a simulation, whose results its report would show.
expect_code 0 "a simulation" "$CLEAVE" simulate input.yaml --quiet --output simulated
expect_code 0 "training where a simulation was" "$CLEAVE" train input.yaml --quiet output.dir=simulated train.steps=2
[ -e simulated.1/simulate.json ] && [ ! -e simulated/simulate.json ] || fail "training where a simulation was: its files stayed"

# A command of one process does its work once, however many are started.
expect_code 0 "export under mpirun" cleave_on 3 export lr=1/checkpoint-4.h5 once.safetensors
expect_text "export under mpirun" 'export is done by one process'
cmp -s once.safetensors lr=1/model.safetensors || fail "export under mpirun: not what it writes alone"

# Variables that are not set: a run that was to go on is not begun anew.
expect_code 0 "a run to go on from" "$CLEAVE" train input.yaml --quiet
for arguments in 'train input.yaml --resume' 'report run -o' 'plan input.yaml --json' train report info; do
  # shellcheck disable=SC2086  # a command and its arguments
  expect_code 2 "$arguments and nothing" "$CLEAVE" $arguments ''
  expect_text "$arguments and nothing" 'is empty'
done
[ ! -e run.1 ] || fail "--resume and nothing began a run anew"

# Files in the place of folders, and files that somebody else wrote.
expect_code 1 "a file in the place of a folder" "$CLEAVE" simulate input.yaml --quiet --output input.yaml/x
golden=$TOP/tests/golden/llama_one.h5
expect_code 2 "check of one file that is none" "$CLEAVE" check input.yaml "$golden" --json checked.json
[ "$(grep -c '"holds": false' checked.json)" -eq 1 ] || fail "check of one file that is none: it holds"
grep -q parameters_hash checked.json || fail "check of one file that is none: the other was not looked at"
for command in plan simulate; do
  expect_code 1 "$command --json gone/x.json" "$CLEAVE" "$command" input.yaml --quiet --json gone/x.json
  expect_text "$command --json gone/x.json" 'write gone/x\.json: gone is no folder'
  grep -q bound "$scratch/out" && fail "$command --json gone/x.json: it worked before it looked for the folder"
done
for setting in output.dir=gone simulate.steps=7 checkpoint.every=3; do
  expect_code 2 "check with $setting" "$CLEAVE" check "$golden" "$setting"
  expect_text "check with $setting" 'fleet, server, plan and verify can be changed'
done
expect_code 1 "check --json gone/x.json" "$CLEAVE" check "$golden" --json gone/x.json
grep -q grad_norm "$scratch/out" && fail "check --json gone/x.json: it worked before it looked for the folder"
expect_code 1 "calibrate -o gone/x.yaml" "$CLEAVE" calibrate -o gone/x.yaml
expect_text "calibrate -o gone/x.yaml" 'gone is no folder'
cp -r run odd
odd_line() { echo "$1" >> odd/metrics.jsonl; }
odd_line '{"step": 9, "dilation": 1.5}'
expect_code 0 "a line without a time" "$CLEAVE" report odd
nested() { head -c 400000 /dev/zero | tr '\0' "$1"; }
odd_line "{\"step\": 10, \"loss\": $(nested '[')$(nested ']')}"
expect_code 0 "a line that is nested without end" "$CLEAVE" report odd
odd_line '{"step": "nine"}'
expect_code 2 "a step that is no number" "$CLEAVE" report odd
expect_text "a step that is no number" 'odd holds files that are not what cleave writes'
mkdir foreign && echo 'not JSON' > foreign/layout.json
expect_code 0 "a foreign file beside a run" "$CLEAVE" train input.yaml --quiet output.dir=foreign
expect_text "a foreign file beside a run" 'no report: .*layout\.json'

# Results do not replace what they are made of.
cp run/checkpoint-4.h5 reference.h5
ln -s input.yaml another.yaml
for arguments in 'plan input.yaml --json input.yaml' 'plan input.yaml --json another.yaml' 'simulate input.yaml --json input.yaml' \
  'calibrate input.yaml -o input.yaml' 'check reference.h5 --json reference.h5' 'report run -o run/metrics.jsonl' \
  'report run -o run/checkpoint-4.h5' 'report run -o run/log.txt'; do
  # shellcheck disable=SC2086  # a command and its arguments
  expect_code 2 "$arguments" "$CLEAVE" $arguments
  expect_text "$arguments" 'are one file'
done
grep -q '^model:' input.yaml || fail "a result replaced the input"
expect_code 0 "the page again" "$CLEAVE" report run -o run/report.html

# "-" is standard output, and nothing else is printed there.
for arguments in "check $TOP/tests/golden/llama_one.h5 --json" 'plan input.yaml --quiet --json' \
  'plan input.yaml --quiet --dry-run --json' 'simulate input.yaml --quiet --json' 'report run -o' 'calibrate -o'; do
  # shellcheck disable=SC2086  # a command and its arguments
  expect_code 0 "$arguments -" bash -c '"$@" 2> /dev/null' _ "$CLEAVE" $arguments -
  first=$(head -c 1 "$scratch/out")
  [[ $first = ['[{<#'] ]] || fail "$arguments -: it begins with '$first'"
  [ ! -e ./- ] || { fail "$arguments -: there is a file of that name"; rm ./-; }
done

# Parameters of another model whose tensors have the same shapes.
expect_code 0 "other heads" "$CLEAVE" train input.yaml --dry-run model.init=run/checkpoint-4.h5 model.n_head=1
expect_text "other heads" '^# warning: run/checkpoint-4.h5 is of another model: n_head is [0-9]+ there and 1 here'
expect_code 0 "the same model" "$CLEAVE" train input.yaml --dry-run model.init=run/checkpoint-4.h5
grep -q 'another model' "$scratch/out" && fail "the same model: it is taken for another"

# A dry run says what the run would go on from, and what stands against that.
expect_code 0 "dry run, resumed" "$CLEAVE" train input.yaml --resume auto --dry-run
expect_text "dry run, resumed" '^# resumes after step 4 from .*run/checkpoint-4\.h5'
expect_code 0 "dry run, nothing to go on from" "$CLEAVE" train input.yaml --resume auto --dry-run output.dir=nowhere
expect_text "dry run, nothing to go on from" '^# warning: no checkpoint in .*nowhere: starting anew'
[ ! -e nowhere ] || fail "a dry run made a folder"
expect_code 2 "dry run, no such checkpoint" "$CLEAVE" train input.yaml --resume gone.h5 --dry-run
expect_code 2 "dry run, other settings" "$CLEAVE" train input.yaml --resume auto train.lr=1 --dry-run
expect_text "dry run, other settings" 'was trained with other settings: train\.lr'
expect_code 2 "dry run, no such parameters" "$CLEAVE" train input.yaml model.init=gone.h5 --dry-run

# Damaged lines of metrics.jsonl are told of.
cp -r run damaged
sed -i '2s/loss/lo\x00s"s/' damaged/metrics.jsonl
expect_code 0 "a damaged line" "$CLEAVE" train input.yaml --quiet --resume auto train.steps=5 output.dir=damaged
expect_text "a damaged line" 'warning: metrics\.jsonl had 1 damaged line, which is left out'

# What check is told in a map is heeded as what it is told by key.
reference=$TOP/tests/golden/llama_one.h5
for section in model train data; do
  expect_code 2 "check of another $section" "$CLEAVE" check "$reference" "$section={}"
  expect_text "check of another $section" "$section: check takes it from the reference file"
done
expect_code 2 "check in stages of what cannot be checked" "$CLEAVE" check "$reference" plan.layout=stages 'verify={mode: all}'
expect_code 0 "check in stages by a second device" "$CLEAVE" check "$reference" plan.layout=stages 'verify={mode: quorum}'

# Evaluations that cannot be made are told of.
expect_code 0 "no validation part" "$CLEAVE" train input.yaml --quiet output.dir=unseen data.val_fraction=0
expect_text "no validation part" 'warning: train\.eval_every is 2, but nothing is evaluated: .* has 0 tokens'
expect_code 0 "a validation part" "$CLEAVE" train input.yaml --quiet output.dir=seen
! grep -q 'nothing is evaluated' "$scratch/out" || fail "a run with evaluations says that there are none"

# What is not known is named, with what may have been meant.
while read -r arguments; do
  read -r text
  # shellcheck disable=SC2086  # a command and its arguments
  expect_code 2 "$arguments" "$CLEAVE" $arguments
  grep -Fq -- "$text" "$scratch/out" || fail "$arguments: $(< "$scratch/out")"
done << 'SLIPS'
trian input.yaml
there is no command 'trian' (did you mean train?)
xyz input.yaml
there is no command 'xyz' (one of train, check, 
--quiet
no command is given (one of train, check, 
--quiet train input.yaml
--quiet goes behind the command (cleave train --quiet)
train input.yaml --dryrun
train has no option --dryrun (did you mean --dry-run?)
train input.yaml --train.steps=3
train has no option --train.steps (a setting has no dashes: train.steps=3)
train
train needs INPUT.yaml
train train.steps=3
train needs an input file (cleave train INPUT.yaml
train input.yaml train.steps
train takes one input file, not 'input.yaml' and 'train.steps' (a setting is written key=value, without blanks)
import model.safetensors
import needs MODEL.safetensors OUT.h5
info run/checkpoint-4.h5 run
info takes CHECKPOINT.h5, not 'run/checkpoint-4.h5' and 'run'
train input.yaml model.family=GPT2
there is no family 'GPT2' (did you mean gpt2?)
train input.yaml model.preset=OPT-13B
there is no preset 'OPT-13B' (did you mean opt-13b?)
train input.yaml data.text=text data.val_fraction=0.9999
command line: data.text: the training part of the text has
train input.yaml data.val_fraction=0.9999
a shorter model.seq_len)
simulate input.yaml --system megatronn
there is no system 'megatronn' (did you mean megatron?)
simulate input.yaml --system galaxi,cleave,swarn
there is no system 'swarn' (did you mean swarm?)
SLIPS
expect_code 2 "help for the command" "$CLEAVE" train --dryrun input.yaml
expect_text "help for the command" "Run 'cleave train --help' for usage"
expect_code 1 "plan --json of a folder" "$CLEAVE" plan input.yaml --quiet --json run
expect_text "plan --json of a folder" 'write run: it is a folder'
! grep -q bound "$scratch/out" || fail "plan --json of a folder: it worked before it looked"

# Names that are no UTF-8, and numbers beyond all devices.
name=$'caf\xe9'
expect_code 2 "a device's name in another encoding" "$CLEAVE" train input.yaml --quiet "fleet.devices.0.name=$name"
expect_text "a device's name in another encoding" 'command line: fleet\.devices\.0\.name: is not UTF-8 text'
expect_code 0 "a folder in another encoding" "$CLEAVE" train input.yaml --quiet "output.dir=$name"
cp "$TOP/tests/golden/llama_one.h5" "$name.h5"
expect_code 0 "a file in another encoding" "$CLEAVE" check "$name.h5" --json names.json
expect_code 0 "the longest latency" "$CLEAVE" plan input.yaml --quiet 'fleet.devices.0.latency=1e6 s' 'fleet.devices.1.latency=1e6 s'
expect_text "the longest latency" 'step [1-9][0-9]+ h'
for value in fleet.devices.0.latency='1e17 s' fleet.devices.0.jitter='1e300 s' server.compute='1e-12 FLOP/s' \
  server.memory_bandwidth='1e-30 B/s' server.nic_in='1e-15 B/s' fleet.devices.0.uplink='1e-3 B/s'; do
  for command in plan simulate; do
    expect_code 2 "$command with $value" "$CLEAVE" "$command" input.yaml --quiet "$value"
    expect_text "$command with $value" 'is too (large|small) \(at (most 1000000 s|least 1 kFLOP/s|least 1 B/s)\)'
  done
done
expect_code 0 "other heads than the preset's" "$CLEAVE" plan input.yaml --quiet 'model={preset: gpt2-124m, n_head: 6, seq_len: 64}' train.batch=1

# What to go on from, given twice, or not to be written in the model's characters.
expect_code 2 "two prompts" "$CLEAVE" generate run/checkpoint-4.h5 --prompt a --prompt-tokens 1,2
expect_code 0 "a model of characters" "$CLEAVE" train input.yaml --quiet data.tokenizer=char train.eval_every=0 output.dir=characters
for prompt in '~' $'\xe9'; do
  expect_code 2 "prompt $prompt" "$CLEAVE" generate characters/checkpoint-4.h5 --prompt "$prompt"
  expect_text "prompt $prompt" '^--prompt: '
done

# On from a link to a checkpoint: the file itself is in the new folder, whatever becomes of the link.
ln -s run/checkpoint-2.h5 latest.h5
expect_code 0 "on from a link" "$CLEAVE" train input.yaml --quiet --resume latest.h5 checkpoint.every=0 output.dir=deep/er
rm latest.h5 deep/er/checkpoint-4.h5
expect_code 0 "and on from there" "$CLEAVE" train input.yaml --quiet --resume auto output.dir=deep/er
expect_text "and on from there" 'resuming after step 2'

# A file where the run's folder is to be.
for command in train "train --resume auto" simulate; do
  # shellcheck disable=SC2086  # a command and its options
  expect_code 1 "$command in a file" "$CLEAVE" $command input.yaml --quiet output.dir=input.yaml
  expect_text "$command in a file" 'use output\.dir .*input\.yaml: .*input\.yaml is no folder'
done

# Without permission: the file that is meant is named, and it is not said to be missing. Root has all permissions, and
# gives up those over files for these calls.
unprivileged=()
[ "$(id -u)" -ne 0 ] || unprivileged=(setpriv --bounding-set "-dac_override,-dac_read_search")
mkdir shut && cp run/checkpoint-2.h5 shut && chmod 000 shut
for command in "check shut/checkpoint-2.h5" "info shut/checkpoint-2.h5" "generate shut/checkpoint-2.h5" "report shut" \
  "report shut/run" "train input.yaml --quiet --resume shut/checkpoint-2.h5"; do
  # shellcheck disable=SC2086  # a command and its arguments
  expect_code 2 "$command, without permission" "${unprivileged[@]}" "$CLEAVE" $command
  expect_text "$command, without permission" '^shut.*: cannot be read: Permission denied'
done
mkdir forbidden && cp run/metrics.jsonl run/checkpoint-[24].h5 run/input.yaml forbidden && chmod 000 forbidden/checkpoint-4.h5
expect_code 1 "on from a checkpoint without permission" "${unprivileged[@]}" "$CLEAVE" train input.yaml --quiet --resume auto \
  train.steps=6 output.dir=forbidden
expect_text "on from a checkpoint without permission" 'forbidden/checkpoint-4\.h5: Permission denied'
[ ! -e forbidden.1 ] && [ -e forbidden/checkpoint-4.h5 ] || fail "a checkpoint that may not be read was moved away"
expect_code 1 "plan into a folder without permission" "${unprivileged[@]}" "$CLEAVE" plan input.yaml --json shut/plan.json
expect_text "plan into a folder without permission" 'write shut/plan\.json: files cannot be made in its folder'
for command in simulate train; do
  expect_code 1 "$command in a folder without permission" "${unprivileged[@]}" "$CLEAVE" $command input.yaml --quiet output.dir=shut/new
  expect_text "$command in a folder without permission" 'shut/new: Permission denied'
done
chmod 700 shut

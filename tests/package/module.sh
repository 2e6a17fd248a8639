#!/usr/bin/env bash
# The environment module of an installed Cleave, loaded and unloaded by the real `module`. Skipped (77) where there is none.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

for init in "${MODULESHOME:-/nowhere}/init/bash" /usr/share/modules/init/bash /usr/share/lmod/lmod/init/bash; do
  [ ! -s "$init" ] || break
  init=
done
[ -n "$init" ] || { echo "skipped: no environment modules (Debian: environment-modules or lmod)"; exit 77; }
expect_code 0 "cmake --install" cmake --install "$BUILD" --prefix "$scratch/prefix"
prefix=$scratch/prefix

# in_module COMMANDS: after `module load cleave` in a shell without the program on its path. What comes with a distribution's
# `module` is not written for `set -u`.
in_module() {
  env -u CLEAVE -u CLEAVE_JOBS -u MODULEPATH -u LOADEDMODULES -u _LMFILES_ bash -c \
    '. "$1" && module use "$2/share/modulefiles" && module load cleave && eval "$3"' _ "$init" "$prefix" "$1"
}
expect_code 0 "the program" in_module 'command -v cleave && cleave --version'
expect_text "the program" "^$prefix/bin/cleave\$"
write_input
# shellcheck disable=SC2016  # for the other shell
expect_code 0 "the scripts" in_module "bash \"\$CLEAVE_JOBS/run.sh\" '$scratch/input.yaml' 2 train.steps=1 --quiet"
[ -s "$scratch/run/checkpoint-1.h5" ] || fail "the scripts: no checkpoint"
# shellcheck disable=SC2016
expect_code 0 "unloading" in_module 'module unload cleave; echo "jobs [$CLEAVE_JOBS] path $PATH"'
expect_text "unloading" 'jobs \[\]'
if grep -q "$prefix/bin" "$scratch/out"; then fail "unloading leaves the path"; fi
# shellcheck disable=SC2016
expect_code 0 "the manual page" in_module 'MANPATH= ; ls "$(dirname "$(dirname "$(command -v cleave)")")/share/man/man1/cleave.1"'

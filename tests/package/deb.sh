#!/usr/bin/env bash
# The Debian packages: what they hold and need, that apt would install them, and that their program runs. Nothing is
# installed: the package is unpacked into a folder. packaging/try-deb.sh installs it in a bare Debian.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

command -v dpkg-shlibdeps > /dev/null || { echo "skipped: no dpkg-shlibdeps (Debian: dpkg-dev)"; exit 77; }
expect_code 0 "cpack" env -C "$BUILD" cpack -G DEB -B "$scratch/packages"
program=$(find "$scratch/packages" -maxdepth 1 -name 'cleave_*.deb')
libraries=$(find "$scratch/packages" -maxdepth 1 -name 'libcleave-dev_*.deb')
[ -n "$program" ] && [ -n "$libraries" ] || { fail "packages are missing"; ls "$scratch/packages"; exit 1; }

expect_code 0 "dpkg-deb --info" dpkg-deb --info "$program"
for need in openmpi-bin libopenmpi3 libhdf5 libblis libyaml-cpp libfmt libspdlog libc6; do
  expect_text "dependencies" "Depends:.*$need"
done
expect_code 0 "dpkg-deb --contents" dpkg-deb --contents "$program"
for file in usr/bin/cleave usr/share/man/man1/cleave.1 usr/share/bash-completion/completions/cleave \
  usr/share/cleave/jobs/run.sh usr/share/cleave/jobs/slurm/requeue.sbatch usr/share/cleave/inputs/quickstart.yaml; do
  expect_text "contents" "\\./$file\$"
done
expect_code 0 "contents of libcleave-dev" dpkg-deb --contents "$libraries"
expect_text "contents of libcleave-dev" 'cleave/cleaveConfig.cmake$'
expect_code 0 "what libcleave-dev needs" dpkg-deb --field "$libraries" Depends
expect_text "what libcleave-dev needs" '^libfmt-dev$'

if [ -n "$(find /var/lib/apt/lists -name '*Packages*' -print -quit)" ]; then
  expect_code 0 "apt-get install --simulate" apt-get install --simulate --no-install-recommends "$program"
fi
dpkg-deb --extract "$program" "$scratch/root"
check_prefix "$scratch/root/usr"

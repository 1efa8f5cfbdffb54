#!/usr/bin/env bash
# Unpacks a Python for an emulated CPU, and what the kernels and their tests need, into FOLDER/root and FOLDER/site.
#
#     tests/arm64/install.sh FOLDER PYTHON [amd64 PACKAGE...]      PYTHON: of this machine, with pip
#
# Needs apt of Debian or Ubuntu, but neither root nor a foreign architecture of dpkg: apt works on a folder of its own.
# The wheels are those of constraints.txt; of Debian the release is fixed, whose archive keeps only the newest packages.
set -euo pipefail
folder=$1 python=$(realpath -s "$2") architecture=${3:-arm64} packages=("${@:4}") here=$(realpath "$(dirname "$0")")
machine=$([ "$architecture" = arm64 ] && echo aarch64 || echo x86_64)
keys=/usr/share/keyrings/debian-archive-keyring.gpg
release=bookworm python_version=3.11 glibc=36

missing() {
  echo "there is no $1 here; on Debian or Ubuntu: apt-get install $2" >&2
  exit 1
}
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
  { echo "this unpacks Debian's packages: it needs apt-get and dpkg-deb, of Debian or Ubuntu" >&2; exit 1; }
[ "$architecture" = amd64 ] || command -v qemu-aarch64-static >/dev/null || command -v qemu-aarch64 >/dev/null ||
  missing QEMU qemu-user-static
[ -e $keys ] || missing $keys debian-archive-keyring

rm -rf "$folder"
mkdir -p "$folder"/{root,site} "$folder"/apt/{state/lists/partial,cache/archives/partial}
cd "$folder"
for suite in debian/$release debian-security/$release-security; do
  echo "deb [arch=$architecture signed-by=$keys] http://deb.debian.org/${suite%%/*} ${suite#*/} main"
done >apt/sources.list
: >apt/status
apt=(apt-get -qq -o APT::Architecture=$architecture -o APT::Architectures::=$architecture -o APT::Sandbox::User=
  -o Dir::Etc::SourceList="$PWD/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
  -o Dir::State="$PWD/apt/state" -o Dir::State::status="$PWD/apt/status" -o Dir::Cache="$PWD/apt/cache")
"${apt[@]}" update
"${apt[@]}" install --download-only --no-install-recommends --yes "python$python_version" libstdc++6 \
  "${packages[@]}" >/dev/null
for package in apt/cache/archives/*.deb; do
  dpkg-deb --extract "$package" root
done

platforms=(--platform any --platform manylinux2014_$machine)
for minor in $(seq 17 $glibc); do
  platforms+=(--platform "manylinux_2_${minor}_$machine")
done
"$python" -m pip --disable-pip-version-check --quiet download --no-deps --only-binary=:all: --dest wheels \
  --python-version $python_version --implementation cp --abi "cp${python_version/./}" --abi abi3 --abi none \
  "${platforms[@]}" --constraint "$here/../../constraints.txt" --requirement "$here/requirements.txt"
for wheel in wheels/*.whl; do
  "$python" -m zipfile --extract "$wheel" site
done
rm -r apt wheels

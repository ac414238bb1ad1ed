#!/usr/bin/env bash
# Makes a folder with a Python for AArch64 and an emulator that runs it on an x86-64 Debian.
#
#     bash tests/emulation/setup.sh        # into $JITGEMM_AARCH64, else ~/.cache/jitgemm-aarch64
#     ~/.cache/jitgemm-aarch64/python -c 'import platform; print(platform.machine())'
#
# Packages come from where this machine's apt and pip get theirs.  Nothing outside the folder is
# changed: apt keeps its state in the folder and unpacks only.  A folder that this very script has
# finished is left as it is; any other is replaced.
set -euo pipefail

HOME_OF_IT=$(realpath -m "${JITGEMM_AARCH64:-${HOME:?}/.cache/jitgemm-aarch64}")
WHEELS=(numpy llvmlite ml_dtypes pytest pytest-timeout hypothesis mpmath)
# The first that is to be had.  Debian 12's own emulator (7.2) multiplies 8-bit outer products
# wrongly; 10 lacks SME2.
EMULATOR_SUITES=(trixie-backports testing)
EMULATOR_AT_LEAST=11

recipe=$(sha256sum "$0" | cut -d' ' -f1)
if [ "$(cat "$HOME_OF_IT/recipe" 2>/dev/null)" = "$recipe" ]; then
    echo "$HOME_OF_IT is there already"
    exit 0
fi

fail() { echo "setup.sh: $*" >&2; exit 1; }
for tool in apt-get dpkg-deb python3; do
    command -v "$tool" >/dev/null || fail "$tool is needed"
done
[ "$(uname -m)" = x86_64 ] || fail "it is for x86-64 machines"

mkdir -p "$(dirname "$HOME_OF_IT")"
new=$(mktemp -d "$HOME_OF_IT.XXXXXX")
trap 'rm -rf "$new"' EXIT
chmod 755 "$new"
root=$new/root
mkdir "$root"

# apt with state of its own: `private_apt NAME OPTIONS... COMMAND`.
private_apt() {
    local state=$new/apt/$1
    shift
    mkdir -p "$state/lists/partial" "$state/archives/partial"
    touch "$state/status"
    apt-get -qq -o APT::Sandbox::User=root -o APT::Install-Recommends=false \
        -o Acquire::Languages=none -o Acquire::Retries=2 \
        -o Dir::State="$state" -o Dir::State::lists="$state/lists" \
        -o Dir::State::status="$state/status" -o Dir::Cache="$state" \
        -o Dir::Cache::archives="$state/archives" "$@" </dev/null >&2
}

# -- the emulator ---------------------------------------------------------------------------------

# The mirror that most of this machine's package lists come from.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security |
    sort | uniq -c | sort -rn | sed -nE '1s/^ *[0-9]+ //p')
[ -n "$mirror" ] || fail "apt names no mirror"
keys=/usr/share/keyrings/debian-archive-keyring.gpg

emulator_of() {
    local suite=$1 sources=$new/sources.$1 package
    echo "deb [signed-by=$keys] $mirror $suite main" >"$sources"
    local apt=(private_apt "$suite" -o Dir::Etc::sourcelist="$sources" -o Dir::Etc::sourceparts=-)
    "${apt[@]}" -o APT::Update::Error-Mode=any update || return
    (cd "$new/apt/$suite/archives" && "${apt[@]}" download qemu-user) || return
    package=$(echo "$new/apt/$suite/archives"/qemu-user_*.deb)
    dpkg-deb --fsys-tarfile "$package" | tar -xO ./usr/bin/qemu-aarch64 >"$new/qemu-aarch64" || return
    chmod +x "$new/qemu-aarch64"
    version=$("$new/qemu-aarch64" --version | sed -nE '1s/.*version ([0-9]+).*/\1/p')
    [ "${version:-0}" -ge "$EMULATOR_AT_LEAST" ]
}
for suite in "${EMULATOR_SUITES[@]}" ""; do
    [ -n "$suite" ] || fail "no suite of $mirror has a qemu-user that is recent enough"
    if emulator_of "$suite"; then break; fi
done

# -- Python ---------------------------------------------------------------------------------------

# This machine's own release, for the other architecture.
arm=(private_apt arm -o APT::Architecture=arm64 -o APT::Architectures=arm64)
"${arm[@]}" update
"${arm[@]}" install --yes --download-only python3-minimal python3 libstdc++6
for package in "$new"/apt/arm/archives/*.deb; do
    dpkg-deb --extract "$package" "$root"
done
# Where directories are merged the link is another package's.
[ -e "$root/lib" ] || ln -s usr/lib "$root/lib"
python=$(basename "$(readlink "$root/usr/bin/python3")")

# -- its packages ---------------------------------------------------------------------------------

site=$root/usr/local/lib/$python/dist-packages
mkdir -p "$site"
platforms=(--platform manylinux2014_aarch64)
for minor in 17 24 26 27 28 31 34; do
    platforms+=(--platform "manylinux_2_${minor}_aarch64")
done
python3 -m pip --disable-pip-version-check install -qq --no-warn-conflicts \
    --root-user-action=ignore --no-compile --target "$site" \
    --only-binary=:all: "${platforms[@]}" --implementation cp --python-version "${python#python}" \
    --abi "${python/python3./cp3}" --abi abi3 --abi none "${WHEELS[@]}"
# No system call starts a program of another architecture: children are started by the script below.
echo 'import os, sys; sys.executable = os.environ.get("JITGEMM_AARCH64_PYTHON", sys.executable)' \
    >"$site/children.pth"

# The model of processor is QEMU's own variable, QEMU_CPU, which children inherit too.  NumPy's BLAS
# is told to be a plain one: its own kernels for SME leave floating-point flags behind.  Byte code is
# kept here, also that of what is tested: making it takes long.
cat >"$new/python" <<SCRIPT
#!/bin/sh
home=\$(dirname "\$(realpath "\$0")")
export JITGEMM_AARCH64_PYTHON="\$home/python" QEMU_LD_PREFIX="\$home/root" OPENBLAS_CORETYPE=ARMV8
export PYTHONPYCACHEPREFIX="\$home/bytecode"
unset OPENBLAS_L2_SIZE LD_LIBRARY_PATH LD_PRELOAD PYTHONHOME PYTHONDONTWRITEBYTECODE
exec "\$home/qemu-aarch64" "\$home/root/usr/bin/$python" "\$@"
SCRIPT
chmod +x "$new/python"

# -- whether it works -----------------------------------------------------------------------------

rm -rf "$new"/apt "$new"/sources.*
rm -rf "$HOME_OF_IT"
mv "$new" "$HOME_OF_IT"
"$HOME_OF_IT/python" -c '
import platform, hypothesis, llvmlite.binding as llvm, ml_dtypes, mpmath, numpy, pytest
version = ".".join(map(str, llvm.llvm_version_info))
print(f"Python {platform.python_version()}, NumPy {numpy.__version__}, LLVM {version}, {platform.machine()}")'
echo "$recipe" >"$HOME_OF_IT/recipe"
echo "$HOME_OF_IT is ready"

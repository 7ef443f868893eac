#!/bin/sh
# Fetches axe-core, which finds what keeps a page from being usable without a mouse or
# without seeing it, by npm into .bin/axe-core-VERSION. The browser test of `interlock ui`
# runs it in the pages. Where it cannot be had (no npm, no network), a line says so, and
# the test leaves it out. INTERLOCK_AXE names another axe.min.js for the test.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'axe.sh: %s\n' "$*" >&2; }

version=4.14.1
sum=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
dir=.bin/axe-core-$version
if [ -f "$dir/axe.min.js" ]; then exit 0; fi
if ! command -v npm >/dev/null 2>&1; then
	say "axe-core is left out: there is no npm"
	exit 0
fi
say "fetching axe-core $version: npm pack, into $dir"
part=.bin/part.axe.$$
mkdir -p "$part"
trap 'rm -rf "$part"' EXIT
if ! why=$(npm pack --loglevel=error --pack-destination "$part" "axe-core@$version" 2>&1); then
	say "axe-core is left out: $(printf '%s\n' "$why" | head -n 1)"
	exit 0
fi
tar -xzf "$part/axe-core-$version.tgz" -C "$part"
is=$(sha256sum "$part/package/axe.min.js" 2>/dev/null || shasum -a 256 "$part/package/axe.min.js")
if [ "${is%% *}" != "$sum" ]; then
	say "axe-core $version is not what it was: its sum is ${is%% *}"
	exit 1
fi
mkdir -p "$dir"
mv "$part/package/axe.min.js" "$part/package/LICENSE" "$dir"

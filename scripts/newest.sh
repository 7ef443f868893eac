#!/bin/sh
# Runs a command in the root and in each nested module that users import, with the
# versions of scripts/newest.txt in place of those of go.mod. No file of the modules
# changes.
#
#   scripts/newest.sh go test ./...
set -eu
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || {
	echo "usage: scripts/newest.sh COMMAND..." >&2
	exit 2
}
versions=$(sed -n 's/^\([^# ]*\) \(v[0-9][^ ]*\)$/-require=\1@\2/p' scripts/newest.txt)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

for mod in go.mod */go.mod; do
	dir=$(dirname "$mod")
	case $dir in
	bench | tools | trust) continue ;; # not for users
	esac
	cp "$dir/go.mod" "$dir/go.sum" "$tmp/"
	# shellcheck disable=SC2086 # a list of options
	go mod edit $versions "$tmp/go.mod"
	echo "newest.sh: $dir: $*" >&2
	(
		cd "$dir"
		go mod tidy -modfile="$tmp/go.mod" # leaves what the module does not use
		GOFLAGS="${GOFLAGS:-} -modfile=$tmp/go.mod" "$@"
	)
done

#!/bin/sh
# Runs a command in the root and in each nested module that users import, with the
# versions of scripts/newest.txt where they are above those of go.mod: in a workspace with
# a module that requires them. No file of the modules changes.
#
#   scripts/newest.sh go test ./...
set -eu
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || {
	echo "usage: scripts/newest.sh COMMAND..." >&2
	exit 2
}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
go=$(sed -n 's/^go //p' go.mod)
mkdir "$tmp/newest"
{
	printf 'module newest\n\ngo %s\n\nrequire (\n' "$go"
	grep -v '^#' scripts/newest.txt
	echo ')'
} >"$tmp/newest/go.mod"

for mod in go.mod core/*/go.mod */go.mod cmd/*/go.mod; do
	dir=$(dirname "$mod")
	case $dir in
	bench | tools | trust) continue ;; # not for users
	esac
	printf 'go %s\n\nuse (\n\t%s\n\t%s\n)\n' "$go" "$(cd "$dir" && pwd)" "$tmp/newest" >"$tmp/go.work"
	echo "newest.sh: $dir: $*" >&2
	(cd "$dir" && GOWORK="$tmp/go.work" "$@")
done

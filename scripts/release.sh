#!/bin/sh
# Checks that a release can be made and tags it, the nested modules that users import
# too, which the table of RELEASING.md names; pushes nothing.
#
#   scripts/release.sh v0.4.0
#
# CHECK names the command that has to pass: by default `make check`, and `make docs`, which
# writes llms-full.txt.
set -eu
cd "$(dirname "$0")/.."

fail() {
	printf 'release.sh: %s\n' "$*" >&2
	exit 1
}

version=${1:-}
case $version in
v[0-9]*.[0-9]*.[0-9]*) ;;
*) fail "usage: scripts/release.sh v0.4.0" ;;
esac
echo "$version" | grep -Eq '^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$' ||
	fail "$version is not a version; v0.4.0 and v0.4.0-rc.1 are"

branch=$(git branch --show-current)
[ "$branch" = main ] || fail "a release is made on main, this is '$branch'"
[ -z "$(git status --porcelain)" ] || fail "there are uncommitted changes; commit them first"
if git rev-parse -q --verify "refs/tags/$version" >/dev/null; then
	fail "$version exists already"
fi
last=$(git tag --list 'v[0-9]*' --sort=-v:refname | head -n 1)
if [ -n "$last" ]; then
	highest=$(printf '%s\n%s\n' "$last" "$version" | sort -V | tail -n 1)
	[ "$highest" = "$version" ] || fail "$version is below $last"
fi
grep -Eq "^## \[${version#v}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}\$" CHANGELOG.md ||
	fail "CHANGELOG.md has no line '## [${version#v}] - YYYY-MM-DD'"

grep -q "^const Released = \"$version\"\$" internal/version/version.go ||
	fail "internal/version/version.go has another version"
grep -Fqx "The newest version is ${version#v}." RELEASING.md ||
	fail "RELEASING.md has another version"

tags=$version
for dir in $(sed -n "s|^. \`\(.*\)\` . \`.*/$version\`.*|\1|p" RELEASING.md); do
	behind=$(sed -nE "s|^(require)?[[:space:]]*(github.com/interlock-go/interlock[^ ]*) (v.*)|\2@\3|p" "$dir/go.mod" |
		grep -vE "@$version( //.*)?\$" | head -n 1) || true
	[ -z "$behind" ] ||
		fail "$dir/go.mod does not require this version: go -C $dir mod edit -require=${behind%@*}@$version"
	tags="$tags $dir/$version"
done

${CHECK:-make check docs} || fail "the check failed"

# installable prints a commit after HEAD that differs in the go.mod of a program: it has no replace
# directive, because `go install` of a program with a version refuses them.
installable() {
	GIT_INDEX_FILE=$(mktemp -u)
	export GIT_INDEX_FILE
	git read-tree HEAD
	mod=$(sed '/^replace ($/,/^)$/d; /^replace /d' "$1/go.mod" | git hash-object -w --stdin)
	git update-index --cacheinfo "100644,$mod,$1/go.mod"
	git commit-tree -p HEAD -m "Release $1 $version, without replace directives" "$(git write-tree)"
	rm -f "$GIT_INDEX_FILE"
}

for tag in $tags; do
	at=HEAD
	case $tag in cmd/*) at=$(installable "${tag%/*}") ;; esac
	git tag -a "$tag" -m "Release $version" "$at"
done
echo "tagged $version; publish it with: git push --atomic origin main $tags"

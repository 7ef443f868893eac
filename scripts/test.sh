#!/bin/sh
# Runs the tests, after installing what they need and this machine lacks.
#
#   scripts/test.sh                        the full lane: the fast tests (go test ./...) of
#                                          the root and the modules for users, and the
#                                          tests of each store on its server, with the race
#                                          detector
#   scripts/test.sh long                   the long lane: those and all others, without
#                                          the race detector
#   scripts/test.sh -run=TestLock ./core   arguments go to go test: some of the full lane
#   MODULE=core/quorum scripts/test.sh .   some of a nested module
#   RACE=0 scripts/test.sh                 without the race detector
#
# The full lane needs redis-server (or valkey-server), PostgreSQL and a C compiler for the
# race detector. The long lane needs PgBouncer, Prometheus, Chromium and ZooKeeper, too, and
# has scripts/axe.sh fetch axe-core.
#
# Without a package (an argument that begins with a dot) the packages of all modules are
# tested. On Debian the packages redis-server, postgresql, pgbouncer and prometheus also
# start services, on ports 6379, 5432, 6432 and 9090; the tests never use them, and
# `systemctl disable --now redis-server postgresql pgbouncer prometheus` ends them.
# INTERLOCK_REDIS_SERVER names another redis-server to be used, INTERLOCK_POSTGRES_BIN
# another directory of initdb and postgres, INTERLOCK_PGBOUNCER another pgbouncer,
# INTERLOCK_PROMETHEUS_BIN another directory of prometheus and promtool,
# INTERLOCK_CHROMIUM another browser of its kind, and INTERLOCK_ZOOKEEPER another
# zookeeper.jar, whose manifest names what it needs.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'test.sh: %s\n' "$*" >&2; }

have() { command -v "$1" >/dev/null 2>&1; }

# find_cc prints the first C compiler that works, the one Go is set up with
# first. It is tried on a program: Debian's gcc without libc6-dev is there and
# still compiles nothing.
find_cc() {
	for cc in "$(go env CC)" cc gcc clang; do
		have "$cc" || continue
		if echo '#include <stdlib.h>' | "$cc" -x c -c -o /dev/null - 2>/dev/null; then
			echo "$cc"
			return
		fi
	done
	return 1
}

# have_postgres looks where the tests do: in the directory that is named, on PATH,
# and where Debian puts what is not on it.
have_postgres() {
	if [ -n "${INTERLOCK_POSTGRES_BIN:-}" ]; then return 0; fi
	if have initdb && have postgres; then return 0; fi
	for dir in /usr/lib/postgresql/*/bin; do
		if [ -x "$dir/initdb" ] && [ -x "$dir/postgres" ]; then return 0; fi
	done
	return 1
}

# have_pgbouncer looks on PATH, and where Debian puts what only root runs.
have_pgbouncer() {
	[ -n "${INTERLOCK_PGBOUNCER:-}" ] || have pgbouncer || [ -x /usr/sbin/pgbouncer ]
}

# have_prometheus looks where the tests do.
have_prometheus() {
	[ -n "${INTERLOCK_PROMETHEUS_BIN:-}" ] || { have prometheus && have promtool; }
}

# have_zookeeper looks where the tests do: for a class path, and the Java that runs it.
have_zookeeper() {
	have java && [ -e "${INTERLOCK_ZOOKEEPER:-/usr/share/java/zookeeper.jar}" ]
}

# have_chromium looks for the names that the browser test looks for.
have_chromium() {
	if [ -n "${INTERLOCK_CHROMIUM:-}" ]; then return 0; fi
	for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
		if have "$name"; then return 0; fi
	done
	return 1
}

# install needs some of redis, cc, postgresql, pgbouncer, prometheus, chromium and zookeeper, and
# installs the packages that bring them; without the rights it prints the command to type.
install() {
	postgresql=postgresql prometheus=prometheus
	if have apt-get; then
		cmd="apt-get install -y --no-install-recommends" redis=redis-server cc="gcc libc6-dev"
	elif have apk; then
		cmd="apk add" redis=redis cc="gcc musl-dev"
	elif have dnf; then
		cmd="dnf install -y" redis=redis cc="gcc glibc-devel" postgresql=postgresql-server prometheus=golang-github-prometheus
	elif have brew; then
		cmd="brew install" redis=redis cc=llvm
	else
		say "missing: $*. Install redis-server (or valkey-server), a C compiler, PostgreSQL, PgBouncer, Prometheus, Chromium and ZooKeeper, then try again."
		exit 1
	fi
	for name in "$@"; do
		case $name in
		redis) cmd="$cmd $redis" ;;
		cc) cmd="$cmd $cc" ;;
		postgresql) cmd="$cmd $postgresql" ;;
		pgbouncer) cmd="$cmd pgbouncer" ;;
		prometheus) cmd="$cmd $prometheus" ;;
		chromium) cmd="$cmd chromium" ;;
		zookeeper) cmd="$cmd zookeeper" ;;
		esac
	done
	# A fresh machine has no package lists yet.
	if have apt-get; then cmd="apt-get update -qq && DEBIAN_FRONTEND=noninteractive $cmd"; fi

	if have brew || [ "$(id -u)" -eq 0 ]; then
		set -- sh -c
	elif sudo -n true 2>/dev/null; then
		set -- sudo -n sh -c
	else
		say "missing: $*, and no rights to install. Type this, then try again:"
		say "  sudo sh -c '$cmd'"
		exit 1
	fi
	say "installing $cmd"
	"$@" "$cmd" >&2
}

if ! have go; then
	say "Go is missing: see https://go.dev/doc/install"
	exit 1
fi

tags=integration timeout=20m
if [ "${1:-}" = long ]; then
	shift
	tags=integration,long timeout=60m
	RACE=${RACE:-0}
fi

# A call that names packages tests packages of this module.
all=1
for arg in "$@"; do
	case $arg in .*) all= ;; esac
done

missing=
if [ -z "${INTERLOCK_REDIS_SERVER:-}" ] && ! have redis-server && ! have valkey-server; then
	missing=redis
fi
race=
if [ "${RACE:-1}" != 0 ]; then
	race=-race
	find_cc >/dev/null || missing="$missing cc"
fi
if [ -n "$all" ]; then
	have_postgres || missing="$missing postgresql"
	if [ "$tags" != integration ]; then
		have_pgbouncer || missing="$missing pgbouncer"
		have_prometheus || missing="$missing prometheus"
		have_chromium || missing="$missing chromium"
		have_zookeeper || missing="$missing zookeeper"
	fi
fi
if [ -n "$missing" ]; then
	# shellcheck disable=SC2086 # a list of words
	install $missing
fi
if [ -n "$race" ]; then
	# The race detector is C code: Go needs cgo and a compiler to link it.
	CC=$(find_cc)
	export CC CGO_ENABLED=1
fi

# `make lint` vets the code, which takes a minute more here. An option of the caller comes
# later, and counts.
set -- -tags=$tags -vet=off -timeout=$timeout "$@"

if [ -z "$all" ]; then
	cd "${MODULE:-.}"
	say "go test $race $*"
	exec go test $race "$@"
fi

if [ "$tags" != integration ]; then ./scripts/axe.sh; fi
# The checks of documents and texts, and the rules of locks, have no goroutines, and take three to
# five times as long with the detector.
plain=$(go list ./internal/checks/... ./core/driver/keystate)
say "go test $race $* ./..., and without the detector ./internal/checks/... ./core/driver/keystate"
# shellcheck disable=SC2046,SC2086 # lists of words
go test $race "$@" $(go list -tags=$tags ./... | grep -vxF "$plain")
# shellcheck disable=SC2086 # a list of words
go test "$@" $plain
# Most modules have one package to test, so two modules are tested at a time. The output of each stays
# together. The long lane measures times, too.
jobs=2
if [ "$tags" != integration ]; then jobs=1; fi
# bench and the examples that are modules compile many dependencies, and are no part of what
# users import; tools is the linter's module and has no tests.
for mod in core/*/go.mod */go.mod cmd/*/go.mod examples/*/go.mod trust/*/go.mod; do
	dir=${mod%/go.mod}
	case $dir in
	tools | '*' | 'cmd/*' | 'examples/*' | 'trust/*') continue ;;
	bench | trust/consensus | examples/*) if [ "$tags" = integration ]; then continue; fi ;;
	esac
	detector=$race
	# They have no goroutine and no mutex of their own. Without the detector their tests are
	# linked from what the linter has compiled.
	case $dir in asynqlock | cmd/interlockvet | gocronlock | mcplock | riverlock | watermilllock) detector= ;; esac
	printf '%s %s\n' "$dir" "$detector"
done | xargs -I '{}' -P $jobs sh -c '
	dir=${1%% *} detector=${1#* } code=0
	shift
	out=$(cd "$dir" && go test $detector "$@" ./... 2>&1) || code=1
	printf "test.sh: cd %s && go test %s %s ./...\n%s\n" "$dir" "$detector" "$*" "$out"
	exit $code
' sh '{}' "$@"

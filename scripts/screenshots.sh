#!/bin/sh
# Makes the pictures of the debug page, of interlock ui and of a terminal that the documents
# show, into docs/pictures: the bank under load on a redis-server of its own, and the tool beside
# it. Needs redis-server, curl, and chromium (apt-get install chromium).
#
#   scripts/screenshots.sh
set -eu
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
pids=
finish() {
	for pid in $pids; do kill "$pid" 2>/dev/null || true; done
	rm -rf "$dir"
}
trap finish EXIT INT TERM

port=${PORT:-17379}
go build -o "$dir/payments" ./examples/payments
go -C cmd/interlock build -o "$dir/interlock" .
redis-server --port "$port" --save '' --dir "$dir" >/dev/null &
pids="$pids $!"
for _ in 1 2 3 4 5 6 7 8 9 10; do
	redis-cli -p "$port" ping >/dev/null 2>&1 && break
	sleep 0.2
done
"$dir/payments" -serve -faults -work 20ms -addr 127.0.0.1:0 -redis "127.0.0.1:$port" >"$dir/lines" 2>"$dir/errors" &
pids="$pids $!"
until grep -q '^listening debug' "$dir/lines"; do sleep 0.1; done
bank=http://$(sed -n 's/^listening http //p' "$dir/lines")
page=$(sed -n 's/^listening debug //p' "$dir/lines")

ask() { curl -s -o /dev/null "$@" & }
pay() {
	ask -X POST "$bank/payments" -H "Authorization: Bearer $1" -H "Idempotency-Key: $1-$2" \
		-H "Bank-Behaviour: delay=$3" -d "{\"account\":\"$2\",\"amount\":1}"
}
for account in alice bob carol dave; do
	curl -s -o /dev/null -X PUT "$bank/accounts/$account?balance=10000"
done
i=0
while [ $i -lt 60 ]; do # work that is over when the picture is taken
	i=$((i + 1))
	ask -X POST "$bank/accounts/alice/debit?amount=1"
	ask -X POST "$bank/transfers/bob/carol?amount=1"
	ask "$bank/reports/bob/carol"
	[ $((i % 6)) -ne 0 ] || pay "client$i" dave 1ms
	sleep 0.05
done
sleep 4
pay erin alice 40s
pay frank dave 40s
sleep 6
ask "$bank/accounts/bob/rating"
for _ in 1 2 3; do
	ask -X POST "$bank/accounts/alice/debit?amount=1"
	sleep 0.4
done
pay grace carol 40s
sleep 1

shot() { # file, width, height, URL, more flags
	file=$1 size=$2,$3 url=$4
	shift 4
	chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$dir/browser" \
		--force-device-scale-factor=1 --window-size="$size" --screenshot="$dir/shot.png" "$@" "$url" >"$dir/chromium" 2>&1
	mv "$dir/shot.png" "docs/pictures/$file"
}
shot debug-page.png 1240 790 "$page"

# The first run keeps the lock until the second has ended.
printf '#!/bin/sh\necho "deploying to $1, token $INTERLOCK_TOKEN"\nuntil [ -e done ]; do sleep 0.1; done\n' >"$dir/deploy.sh"
chmod +x "$dir/deploy.sh"
PATH="$dir:$PATH"
export PATH INTERLOCK_ADDR="127.0.0.1:$port"
for key in invoice/2026-10 tenant/acme invoice/2026-10; do # the last one waits
	interlock run "$key" -- sleep 60 &
	pids="$pids $!"
	sleep 1
done
interlock ui >"$dir/ui" 2>&1 &
pids="$pids $!"
until grep -q http:// "$dir/ui"; do sleep 0.1; done
shot ui.png 1280 570 "$(sed -n 's|.*\(http://[^ ]*\).*|\1|p' "$dir/ui")" --timeout=3000

# The terminal is the output of real commands, in a page.
cat >"$dir/session.sh" <<'END'
try() {
	last=$?
	printf '$ %s\n' "$1"
	(exit $last)
	eval "$1"
}
try 'interlock run deploy/web -- ./deploy.sh production &'
sleep 2
try 'interlock run deploy/web -wait 0 -- ./deploy.sh production'
try 'echo $?'
touch done
wait
END
(cd "$dir" && sh session.sh 2>&1) | sed 's/&/\&amp;/g; s/</\&lt;/g' >"$dir/session"
{
	printf '<!DOCTYPE html><meta charset="utf-8"><style>body{margin:0;padding:18px 22px;background:#0d1117;color:#e6edf3}'
	printf 'pre{margin:0;font:14px/1.5 "DejaVu Sans Mono",monospace;white-space:pre-wrap}</style><pre>'
	cat "$dir/session"
	printf '</pre>'
} >"$dir/terminal.html"
shot terminal.png 900 "$((36 + 21 * $(wc -l <"$dir/session")))" "file://$dir/terminal.html"
ls -l docs/pictures/*.png

package main

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestPercentileIsTheNearestRank(t *testing.T) {
	var sorted []time.Duration
	for i := range 200 {
		sorted = append(sorted, time.Duration(i+1))
	}
	for p, want := range map[int]time.Duration{1: 2, 50: 100, 99: 198, 100: 200} {
		if got := percentile(sorted, p); got != want {
			t.Errorf("p%d = %d, want %d", p, got, want)
		}
	}
	if got := percentile(sorted[:1], 50); got != 1 {
		t.Errorf("p50 of one value = %d, want 1", got)
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -999: "-999", -1000: "-1,000", 12345678: "12,345,678"} {
		if got := grouped(n); got != want {
			t.Errorf("grouped(%d) = %q, want %q", n, got, want)
		}
	}
}

// The demonstration must be able to fail, or its success means nothing.
func TestABrokenInvariantIsReported(t *testing.T) {
	good := result{locked: true, requests: 5, done: 4, refused: 1, balances: []int64{6, 14}, expected: []int64{6, 14}}
	if err := good.broken(); err != nil {
		t.Errorf("an exact result: %v", err)
	}
	for name, spoil := range map[string]func(*result){
		"a debit is missing":   func(r *result) { r.balances[0]++ },
		"money was made":       func(r *result) { r.balances[1]++ },
		"they cancel out":      func(r *result) { r.balances[0]++; r.balances[1]-- },
		"a token came twice":   func(r *result) { r.reused = 1 },
		"an unexpected answer": func(r *result) { r.failed = errors.New("a request was answered 500") },
		"nothing was served":   func(r *result) { r.done = 0 },
	} {
		r := good
		r.balances = append([]int64(nil), good.balances...)
		spoil(&r)
		if r.broken() == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
	slow := result{locked: true, requests: 5, done: 3, unknown: 2, balances: []int64{5}, expected: []int64{7}}
	if err := slow.broken(); err != nil {
		t.Errorf("updates whose outcome is unknown are not lost: %v", err)
	}
	if slow.balances[0]--; slow.broken() == nil {
		t.Error("an update is missing beside those whose outcome is unknown: not noticed")
	}
	unlocked := result{requests: 2, done: 2, balances: []int64{9}, expected: []int64{8}}
	if err := unlocked.broken(); err != nil {
		t.Errorf("updates lost without a lock break nothing that was promised: %v", err)
	}
}

func TestTable(t *testing.T) {
	results := []result{
		{title: "debits without lock", requests: 200, done: 200, by: map[string]int{"http": 68, "gin": 66, "echo": 66}, balances: []int64{9990}, expected: []int64{9800}, commands: 2},
		{
			title: "transfers both ways", locked: true, requests: 200, done: 199, refused: 1, commands: 2.25,
			balances: []int64{9961, 10039}, expected: []int64{9961, 10039},
			waits: []time.Duration{1500 * time.Microsecond, 300 * time.Millisecond},
		},
	}
	var out strings.Builder
	if err := printTable(&out, config{work: 2 * time.Millisecond}, results); err != nil {
		t.Fatal(err)
	}
	var cells []string
	for line := range strings.Lines(out.String()) {
		cells = append(cells, strings.Join(strings.Fields(line), " "))
	}
	text := strings.Join(cells, "\n")
	for _, want := range []string{
		"requests 200 200", "done 200 199", "by http, gin, echo, grpc 68+66+66+0 0+0+0+0", "refused, lock busy 0 1", "final balance 9,990 9,961 + 10,039",
		"expected balance 9,800 9,961 + 10,039", "lost updates 190 0", "wait for the lock, p50 - 1.5ms",
		"wait for the lock, p99 - 300ms", "Redis commands per request 2.00 2.25", "money lost exact",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 100 {
			t.Errorf("line of %d characters: %s", len(line), line)
		}
	}
}

func TestWhatRunsTogetherMustKeepItsPromises(t *testing.T) {
	c := &restClient{name: "gin"}
	good := together{title: "shared lock", guarded: true, most: 4, meanwhile: 7, by: make(map[string]int), waits: []time.Duration{3 * time.Millisecond}}
	good.note(c, reply{sum: 5})
	good.note(c, reply{reason: "held", err: errors.New("423")})
	good.note(c, reply{reason: "full", err: errors.New("429")})
	if err := good.broken(); err != nil || good.asked != 3 || good.done != 1 || good.refused != 2 || good.verdict() != "exact" {
		t.Errorf("an exact result: %+v, %v", good, err)
	}
	for name, spoil := range map[string]func(*together){
		"a sum is wrong":       func(r *together) { r.wrong++ },
		"an unexpected answer": func(r *together) { r.note(c, reply{reason: "lost", err: errors.New("500")}) },
		"nothing was served":   func(r *together) { r.done = 0 },
	} {
		r := good
		if spoil(&r); r.broken() == nil || r.verdict() != "BROKEN" {
			t.Errorf("%s: not noticed", name)
		}
	}
	without := good
	without.title, without.guarded, without.wrong, without.waits = "no lock", false, 9, nil
	if err := without.broken(); err != nil || without.verdict() != "wrong" {
		t.Errorf("wrong sums without a lock break nothing that was promised: %v", err)
	}

	both := []together{without, good}
	var out strings.Builder
	if err := printTogether(&out, both, both); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 100 {
			t.Errorf("line of %d characters: %s", len(line), line)
		}
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"no lock shared lock reports 3 3", "refused, lock busy 2 2", "transfers meanwhile 7 7", "sums with half a transfer 9 0",
		"p99 - 3ms wrong exact", "refused, no permit 2 2", "at most 4 4 calls above the contract 9 0",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

func TestRepeatsThatAreNotExactlyOnceAreReported(t *testing.T) {
	made, again := reply{payment: "a"}, reply{payment: "a", replayed: true}
	busy := reply{reason: "idempotency-in-flight", err: errors.New("409")}
	held := reply{reason: "held", err: errors.New("423")}
	good := repeats{payments: 3, crossed: 2, balance: openingBalance - 2}
	good.note([]reply{made, busy, again})
	good.note([]reply{again, made, again})
	good.note([]reply{held, busy, held})
	if err := good.broken(); err != nil || good.busy != 2 || good.made != 2 || good.replayed != 3 || good.inFlight != 2 || good.requests != 9 {
		t.Errorf("an exact result: %+v, %v", good, err)
	}
	for name, spoil := range map[string]func(*repeats){
		"carried out twice":    func(r *repeats) { r.note([]reply{made, made, again}) },
		"never carried out":    func(r *repeats) { r.note([]reply{busy, busy, again}) },
		"another's answer":     func(r *repeats) { r.note([]reply{made, again, {payment: "b", replayed: true}}) },
		"an unexpected answer": func(r *repeats) { r.note([]reply{made, again, {reason: "lost", err: errors.New("500")}}) },
		"the balance":          func(r *repeats) { r.balance-- },
		"a key of another way": func(r *repeats) { r.crossed-- },
	} {
		r := good
		spoil(&r)
		if r.broken() == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
	for name, answers := range map[string][]reply{
		"the record was out of reach, and then the payment was made": {busy, {reason: "idempotency-unavailable", err: errors.New("503")}, made},
		"the answer that it was made did not arrive":                 {{err: errors.New("reset"), silent: true}, busy, again},
		"never answered": {held, {reason: "ledger-unavailable", err: errors.New("503")}, busy},
	} {
		r := good
		r.note(answers)
		if r.confirmed > good.confirmed {
			r.balance, r.crossed = r.balance-1, r.crossed+1
		}
		if err := r.broken(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if r.open > 0 {
			r.balance-- // it was made all the same
			if err := r.broken(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if r.balance--; r.broken() == nil {
			t.Errorf("%s, and money is missing: not noticed", name)
		}
	}
	var out strings.Builder
	if err := printRepeats(&out, good); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 100 {
			t.Errorf("line of %d characters: %s", len(line), line)
		}
	}
	if text := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(text, "carried out 2 replayed 3 refused, in flight 2") {
		t.Errorf("the report: %s", out.String())
	}
}

func TestRetentionAndLeaseHaveDefaultsThatFit(t *testing.T) {
	for line, want := range map[string][2]time.Duration{
		"":                               {time.Minute, 30 * time.Second},
		"-serve":                         {24 * time.Hour, 30 * time.Second},
		"-serve -retention 5s":           {5 * time.Second, 5 * time.Second},
		"-serve -lease 1s":               {24 * time.Hour, time.Second},
		"-serve -retention 1m -lease 2s": {time.Minute, 2 * time.Second},
	} {
		cfg, err := parseFlags(strings.Fields(line), t.Output())
		if err != nil || cfg.retention != want[0] || cfg.lease != want[1] {
			t.Errorf("%q: %v, %v, %v", line, cfg.retention, cfg.lease, err)
		}
	}
}

func TestFlags(t *testing.T) {
	cfg, err := parseFlags(nil, t.Output())
	if err != nil || cfg.addr != "127.0.0.1:0" || cfg.ttl != 30*time.Second || len(cfg.redis) != 0 || cfg.grpc != "127.0.0.1:0" {
		t.Errorf("defaults of the demonstration: %+v, %v", cfg, err)
	}
	cfg, err = parseFlags([]string{"-serve", "-redis", "a:1,b:2", "-ttl", "1s", "-wait", "0", "-work", "0", "-gin", "a:4", "-echo", "a:5", "-grpc", "a:6", "-otel", "stdout"}, t.Output())
	if err != nil || cfg.addr != "127.0.0.1:8080" || cfg.gin != "a:4" || cfg.echo != "a:5" || cfg.grpc != "a:6" || cfg.otel != "stdout" || len(cfg.redis) != 2 || cfg.ttl != time.Second {
		t.Errorf("-serve: %+v, %v", cfg, err)
	}
	for _, args := range [][]string{{"-ttl", "0"}, {"-ttl", "9ms"}, {"-work", "-1s"}, {"-wait", "-1s"}, {"-redis", "a:1,"}, {"extra"}, {"-otel", "file"}, {"-lease", "9ms"}, {"-retention", "1s", "-lease", "2s"}, {"-retention", "0"}, {"-nonsense"}} {
		if _, err := parseFlags(args, t.Output()); err == nil {
			t.Errorf("%v: accepted", args)
		}
	}
}

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/examples/payments/paymentspb"
	"github.com/interlock-go/interlock/interlockdebug"
)

// The command without flags prints its tables, and here the spans before them.
func TestDemonstration(t *testing.T) {
	t.Parallel()
	var stdout strings.Builder
	if status := run(t.Context(), []string{"-otel", "stdout"}, &stdout, t.Output()); status != 0 {
		t.Errorf("exit status %d", status)
	}
	spans, tables := 0, ""
	for line := range strings.Lines(stdout.String()) {
		switch isSpan := strings.HasPrefix(line, "{"); {
		case isSpan && tables != "":
			t.Fatalf("a span after the tables: %s", line)
		case isSpan:
			spans++
		default:
			tables += line
		}
	}
	if spans < 3*clients {
		t.Errorf("%d spans", spans)
	}
	t.Log("\n" + tables)
	var words []string // however many blanks there are between them
	for line := range strings.Lines(tables) {
		words = append(words, strings.Join(strings.Fields(line), " "))
	}
	text := strings.Join(words, "\n")
	for _, want := range []string{
		"Redis: a server inside this process.", "requests 200 200 200", "final balance ", "lost updates ", "wait for the lock, p99 - ",
		"Redis commands per request ", "money lost exact exact", "reports 150 150", "sums with half a transfer ", "wrong exact",
		"no permits 3 permits", "calls above the contract ", "requests 300\ncarried out 100\nreplayed 200", "keys refused over gRPC 100",
		"expected balance 9,900\npayments made twice, or lost 0",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the tables lack %q", want)
		}
	}
	page, err := os.ReadFile("../../docs/first-service.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(page), "```\nA bank")
	shown, _, ended := strings.Cut(shown, "```\n")
	if shown = unnumbered(shown); !ended || strings.Count(shown, "\n") < 12 || !strings.HasPrefix(unnumbered(strings.TrimPrefix(tables, "A bank")), shown) {
		t.Errorf("docs/first-service.md shows other tables; but for the numbers these are printed:\n%s", tables)
	}
}

var numbers = regexp.MustCompile(`[0-9][0-9.,]*(µs|ms|s)?`)

// unnumbered is a text without its numbers, however many blanks there are between its words.
func unnumbered(text string) string {
	var lines strings.Builder
	for line := range strings.Lines(numbers.ReplaceAllString(text, "N")) {
		lines.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return lines.String()
}

func TestAColumnSaysWhatWentWrong(t *testing.T) {
	t.Parallel()
	for want, tr := range map[string]*trial{
		"exact": {guarded: true, done: 1}, "money lost": {done: 1, wrong: 2}, "BROKEN": {guarded: true, done: 1, wrong: 1},
	} {
		if got := verdict("money lost").value(tr); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	none := &trial{guarded: true}
	if !none.broken() {
		t.Error("a run that served no request is right")
	}
}

// The first signal ends the accepting. A request that has arrived is answered.
func TestServing(t *testing.T) {
	t.Parallel()
	ctx, signal := context.WithCancel(t.Context())
	defer signal()
	r, w := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"-serve", "-addr", anyPort, "-faults", "-otel", "stdout"}, w, t.Output())
		_ = w.Close()
	}()
	lines := bufio.NewScanner(r)
	at := make(map[string]string)
	for _, front := range append(frontends, "debug") {
		var name, addr string
		if lines.Scan(); lines.Err() != nil {
			t.Fatal(lines.Err())
		}
		if _, err := fmt.Sscanf(lines.Text(), "listening %s %s", &name, &addr); err != nil || name != front {
			t.Fatalf("line %q, want the line of %s", lines.Text(), front)
		}
		at[front] = addr
	}
	spans := make(chan int, 1)
	go func() {
		n := 0
		for ; lines.Scan(); n++ {
			if !json.Valid(lines.Bytes()) {
				t.Errorf("not a span: %s", lines.Text())
			}
		}
		spans <- n
	}()
	c, err := dial("http", at["http"], false, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.hangUp() }()
	if _, err := do(t.Context(), c, &paymentspb.PutAccountRequest{Account: "alice", Balance: 100}); err != nil {
		t.Fatal(err)
	}
	paying := later(keyed(t.Context(), "k", "delay=3s"), c, pays("alice", 10)) // long enough to be seen
	eventually(t, func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at["debug"], http.NoBody)
		if err != nil {
			return err
		}
		req.Header.Set("Accept", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var s interlockdebug.Snapshot
		if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
			return err
		}
		if s.Pending != 1 || len(s.Locks) != 1 || s.Locks[0].Key != "account/alice" {
			return fmt.Errorf("not under way: %+v", s)
		}
		return nil
	})
	http.DefaultClient.CloseIdleConnections()
	signal()
	if err := <-paying; err != nil {
		t.Errorf("the payment under way: %v", err)
	}
	if status := <-ended; status != 0 {
		t.Errorf("exit status %d", status)
	}
	if n := <-spans; n == 0 {
		t.Error("no spans")
	}
}

package explore

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/httplock"
)

func TestAServiceWithoutPlacesIsRefused(t *testing.T) {
	for _, c := range []struct {
		service Service
		want    error
	}{
		{Service{}, errNoService},
		{Service{Handler: func(*Process) http.Handler { return http.NotFoundHandler() }}, errNoPlace},
	} {
		if err := newSearch(t, c.service, nil).explore(); !errors.Is(err, c.want) {
			t.Errorf("got %v, want %v", err, c.want)
		}
	}
}

// mailer sends a mail for each of two messages, without any protection.
var mailer = Service{
	Messages: []Message{{ID: "m1"}, {ID: "m2"}},
	Consumer: func(p *Process) func(context.Context, Message) error {
		locker := p.Locker()
		return func(ctx context.Context, _ Message) error {
			return locker.Do(ctx, "mail", func(ctx context.Context) error { return Effect(ctx, "mail", "") })
		}
	},
}

// shop charges and mails for each of two requests, under a lock.
var shop = Service{
	Requests: []Request{{Body: "1"}, {Body: "2"}},
	Handler: func(p *Process) http.Handler {
		engine := p.Engine(idempotency.Under(core.Serialize(p.Locker(), "shop")))
		client := &http.Client{Transport: &httplock.Transport{Base: p}}
		return httplock.Idempotent(engine)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, url := range []string{"http://bank/charge", "http://mail/send"} {
				call, _ := http.NewRequestWithContext(r.Context(), http.MethodPost, url, nil)
				res, err := client.Do(call)
				if err != nil {
					http.Error(w, "not now", http.StatusServiceUnavailable)
					return
				}
				_ = res.Body.Close()
			}
			w.WriteHeader(http.StatusCreated)
		}))
	},
}

func TestTheSameCodeVisitsTheSamePlacesInTheSameOrder(t *testing.T) {
	for _, service := range []Service{mailer, shop} {
		sameOrder(t, service)
	}
}

func sameOrder(t *testing.T, service Service) {
	visits := func() (all []string) {
		defer quiet()()
		s := newSearch(t, service, nil)
		for _, in := range []setting{alone, together} {
			w, _ := s.run(in)
			for _, f := range faultsAt(w.places) {
				again, _ := s.run(in, f)
				all = append(all, path(in, []fault{f}))
				for _, line := range again.lines() {
					_, line, _ = strings.Cut(line, "s  ") // a Transport pauses for a random time
					all = append(all, line)
				}
			}
		}
		return all
	}
	first, second := visits(), visits()
	for i := range first {
		if i >= len(second) || first[i] != second[i] {
			t.Fatalf("the runs differ:\n%s\nand\n%s", around(first, i), around(second, i))
		}
	}
	if len(first) < 500 {
		t.Errorf("only %d lines: the runs visit too little", len(first))
	}
}

// around returns the lines before a line, and the line.
func around(lines []string, i int) string {
	return strings.Join(lines[max(0, i-15):min(i+5, len(lines))], "\n")
}

func TestAMessageThatIsConsumedTwiceIsFound(t *testing.T) {
	defer quiet()()
	s := newSearch(t, mailer, nil)
	if err := s.explore(); err != nil || s.report.Failure == nil {
		t.Fatalf("found nothing: %v, %v", s.report, err)
	}
	const want = "process B died after mail and before release mail: mail: twice for message 1; without faults once"
	if got := s.report.Failure.Faults + ": " + s.report.Failure.Broken; got != want {
		t.Errorf("found %q, want %q", got, want)
	}
}

func TestAPathThatIsNotPossibleIsRefused(t *testing.T) {
	for _, text := range []string{"A dies", "alone: A dies before lunch"} {
		if err := newSearch(t, mailer, []Option{Path(text)}).explore(); err == nil {
			t.Errorf("the path %q was followed; want an error", text)
		}
	}
}

func TestALongSequenceOfFaultsIsShortened(t *testing.T) {
	defer quiet()()
	s := newSearch(t, mailer, []Option{Path("alone: B pauses before acquire mail; then B dies after mail; then A is cut off before release mail")})
	if err := s.explore(); err != nil || s.report.Failure == nil {
		t.Fatalf("the path found nothing: %v", err)
	}
	w, broken := s.run(alone, s.report.injected...)
	calm, _ := s.run(alone)
	s.report.Failure = nil
	s.shorten(map[setting]*World{alone: calm}, w, broken)
	if want := "alone: B dies after mail"; s.report.Failure.Path != want {
		t.Errorf("shortened to %q, want %q", s.report.Failure.Path, want)
	}
}

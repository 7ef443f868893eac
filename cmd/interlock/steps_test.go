//go:build integration

package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/interlock-go/interlock/cmd/interlock/internal/show"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/idempotency/once"
	"github.com/interlock-go/interlock/core/redisstore"
)

// A request stops in a step that must not run twice, and an operator settles the step.
func TestIdemNamesTheStepUnderWayAndSettlesIt(t *testing.T) {
	s := alone(t)
	store, err := redisstore.New(s.rdb)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close() //nolint:errcheck // it returns nil
	engine, err := idempotency.New(store, idempotency.Global())
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close(t.Context()) //nolint:errcheck // a goroutine that remains is found
	var key string
	book := errors.New("the hotel does not answer")
	trip := func() (string, error) {
		return once.Do(t.Context(), engine, "trip", 1, func(ctx context.Context, _ int) (string, error) {
			if _, err := idempotency.Step(ctx, "charge", func(context.Context) (int, error) { return 1, nil }); err != nil {
				return "", err
			}
			room, err := idempotency.Step(ctx, "book", func(ctx context.Context) (string, error) {
				key = idempotency.DownstreamKey(ctx)
				return "", book
			}, idempotency.Once())
			if err == nil && room == "room 7" {
				_, err = idempotency.Step(ctx, "mail", func(context.Context) (int, error) { return 0, errors.New("no mail today") })
			}
			return room, err
		})
	}
	if _, err := trip(); !errors.Is(err, idempotency.ErrOutcomeUnknown) {
		t.Fatalf("the function returned %v; want an unknown outcome", err)
	}
	for _, name := range s.rdb.Keys(t.Context(), "interlock:idem:*").Val() {
		s.rdb.HSet(t.Context(), name, "u", "1") // its lease has ended
	}
	all := decode[show.Record](t, s.want(0, "idem", "ls", "-state", "unknown", "-json"))
	if len(all) != 1 || all[0].Step != "charge" || all[0].UnderWay != "book" || all[0].StepKey != key || all[0].Marked {
		t.Fatalf("%+v; want the step book under way, with the key %s", all, key)
	}
	if r := s.want(0, "idem", "show", all[0].ID); !strings.Contains(r.out, "charge") || !strings.Contains(r.out, "book") || !strings.Contains(r.out, key) {
		t.Errorf("\n%s; want the steps, and the key of the step under way", r.out)
	}
	s.want(exitUsage, "idem", "resolve", all[0].ID, "-step", "book", "-not-carried-out")
	s.want(exitNo, "idem", "resolve", all[0].ID, "-step", "mail")
	if r := s.input(`"room 7"`, "idem", "resolve", all[0].ID, "-step", "book", "-body", "-"); r.code != 0 || r.out != "resolved\n" {
		t.Fatalf("%+v", r)
	}
	open := decode[show.Record](t, s.want(0, "idem", "ls", "-state", "open", "-json"))
	if len(open) != 1 || open[0].Step != "book" || open[0].UnderWay != "" {
		t.Errorf("%+v; want the record, open after the step book", open)
	}
	if _, err := trip(); err == nil || !strings.Contains(err.Error(), "no mail today") {
		t.Errorf("the next attempt: %v; want it to go on after the step book", err)
	}
}

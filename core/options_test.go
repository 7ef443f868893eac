package core_test

import (
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/interlock-go/interlock/core"
)

// The compiler refuses an option in a place where it has no meaning. The type that
// the function of the option returns decides it.
func TestAnOptionIsAcceptedOnlyWhereItHasAMeaning(t *testing.T) {
	places := []struct {
		name string
		kind reflect.Type
	}{
		{"New", reflect.TypeFor[core.LockerOption]()},
		{"a guard", reflect.TypeFor[core.GuardOption]()},
		{"a call", reflect.TypeFor[core.Option]()},
	}
	for name, c := range map[string]struct {
		option any
		want   string
	}{
		"Wait":         {core.Wait, "[New a guard a call]"},
		"TTL":          {core.TTL, "[New a guard a call]"},
		"Watchdog":     {core.Watchdog, "[New a guard a call]"},
		"MaxHold":      {core.MaxHold, "[New a guard a call]"},
		"MaxWaiters":   {core.MaxWaiters, "[New a guard a call]"},
		"Name":         {core.Name, "[New a guard a call]"},
		"OnLost":       {core.OnLost, "[New a guard a call]"},
		"ContextFunc":  {core.ContextFunc, "[New a guard]"},
		"CheckAnswer":  {core.CheckAnswer, "[New a guard]"},
		"PerPrincipal": {core.PerPrincipal, "[New a guard]"},
		"WithObserver": {core.WithObserver, "[New]"},
		"Turn":         {core.Turn, "[New]"},
		"NestedWait":   {core.NestedWait, "[New]"},
		"Service":      {core.Service, "[New]"},
		"Unlisted":     {core.Unlisted, "[New]"},
		"And":          {core.And, "[a guard]"},
		"KeyFunc":      {core.KeyFunc, "[a guard]"},
		"FailOpen":     {core.FailOpen, "[a guard]"},
		"ReadBody":     {core.ReadBody, "[a guard]"},
	} {
		returned := reflect.TypeOf(c.option).Out(0)
		var accepted []string
		for _, p := range places {
			if returned.AssignableTo(p.kind) {
				accepted = append(accepted, p.name)
			}
		}
		if got := fmt.Sprint(accepted); got != c.want {
			t.Errorf("%s is accepted by %s; want %s", name, got, c.want)
		}
	}
}

func TestANilOptionHasNoEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, newStore(), nil, core.Name("l"), nil)
		if g := core.Serialize(l, "k", nil); g.Name() != "l" {
			t.Errorf("the guard has the name %q", g.Name())
		}
		lease, err := l.Lock(t.Context(), "k", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

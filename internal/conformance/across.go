package conformance

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/adaptertest"
	"github.com/interlock-go/interlock/internal/frameworks"
)

// RunAcross lets a call of each framework wait for a call of each other: an RPC debit for
// a REST debit. The two are in separate processes, as far as locks go: nothing but the key
// at the server connects them.
func RunAcross(t *testing.T, over []frameworks.Framework, open func(testing.TB) core.Store) {
	w := &world{T: t}
	lockers := [2]*core.Locker{adaptertest.LockerOn(t, open(t)), adaptertest.LockerOn(t, open(t))}
	inside, leave := make(chan struct{}, 1), make(chan struct{})
	var clients [2][]adaptertest.Client
	handlers := [2]func(context.Context, *adaptertest.Call) error{
		func(ctx context.Context, _ *adaptertest.Call) error { // holds
			inside <- struct{}{}
			return adaptertest.Meet(ctx, leave)
		},
		keysOf, // waits
	}
	for i, handler := range handlers {
		for _, a := range over {
			w.Framework = a
			_, client := w.serve(handler, core.Serialize(lockers[i], "account/{id}", core.Wait(time.Minute)))
			clients[i] = append(clients[i], client)
		}
	}
	for i, holder := range over {
		for j, waiter := range over {
			t.Run(waiter.Label+" waits for "+holder.Label, func(t *testing.T) {
				// A slash and a percent sign, which a path has to escape and a message not.
				id := fmt.Sprintf("a/b%%%d-%d", i, j)
				key, err := core.Key("account", id)
				if err != nil {
					t.Fatal(err)
				}
				first := async(t.Context(), clients[0][i], account(id))
				adaptertest.Receive(t, inside, "its handler ran", first)
				second := async(t.Context(), clients[1][j], account(id))
				adaptertest.Queued(t, lockers[1], 1, second)
				leave <- struct{}{}
				if o := adaptertest.Receive(t, first, "the holder's end"); !o.OK {
					t.Errorf("%+v", o)
				}
				if o := adaptertest.Receive(t, second, "the waiter's turn"); !o.OK || o.Text != key {
					t.Errorf("%+v", o)
				}
			})
		}
	}
}

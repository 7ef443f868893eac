package adaptertest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/internal/testkit"
)

// RunAcross lets a call of each framework wait for a call of each other: an RPC debit for
// a REST debit. The two are in separate processes, as far as locks go: nothing but the key
// at the server connects them.
func RunAcross(t *testing.T, open func(testing.TB) core.Store, over ...Framework) {
	w := &world{T: t}
	lockers := [2]*core.Locker{testkit.LockerOn(t, open(t)), testkit.LockerOn(t, open(t))}
	inside, leave := make(chan struct{}, 1), make(chan struct{})
	var clients [2][]Client
	handlers := [2]func(context.Context, *Call) error{
		func(ctx context.Context, _ *Call) error { // holds
			inside <- struct{}{}
			return testkit.Meet(ctx, leave)
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
				testkit.ReceiveBefore(t, inside, "its handler ran", first)
				second := async(t.Context(), clients[1][j], account(id))
				testkit.QueuedBefore(t, lockers[1], 1, second)
				leave <- struct{}{}
				if o := testkit.Receive(t, first, "the holder's end"); !o.OK {
					t.Errorf("%+v", o)
				}
				if o := testkit.Receive(t, second, "the waiter's turn"); !o.OK || o.Text != key {
					t.Errorf("%+v", o)
				}
			})
		}
	}
}

//go:build integration

package rediswire

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	"github.com/interlock-go/interlock/core/internal/clock"
	"github.com/interlock-go/interlock/internal/redistest"
)

// Requests of one call do the same whether the arguments that they have in common are
// sent once or with each of them, as they have to be once one differs. Where lockers wait
// already, an acquire has an argument more.
func TestRequestsOfACallHaveTheirOwnArguments(t *testing.T) {
	t.Parallel()
	const n = 3 // with two arguments in common so many are as many as a fenced release has
	for i := range 2 * (n + 1) {
		odd, wait := i%(n+1)-1, i > n
		t.Run(fmt.Sprintf("odd one %d, others wait %v", odd, wait), func(t *testing.T) {
			t.Parallel()
			s := common(t)
			rdb := s.requests.single
			key := func(i int) string { return fmt.Sprint("k", i) }
			// do sends the requests in one call, and returns it and their replies.
			do := func(arguments int, of func(i int) *Request) []any {
				t.Helper()
				c := &call{}
				for i := range n {
					c.requests = append(c.requests, of(i))
				}
				c.command(t.Context())
				if odd < 0 && len(c.cmd.Args()) != arguments {
					t.Errorf("%d arguments, want %d: %v", len(c.cmd.Args()), arguments, c.cmd.Args())
				}
				if err := rdb.Process(t.Context(), &c.cmd); err != nil {
					t.Fatal(err)
				}
				replies := make([]any, n)
				for i := range n {
					var err error
					if replies[i], err = c.requests[i].script.part(c.cmd.Val(), i, n); err != nil || replies[i] == nil {
						t.Fatalf("reply %d: %v, %v", i, replies[i], err)
					}
				}
				return replies
			}
			lease := func(i int) time.Duration {
				if i == odd {
					return 2 * time.Minute
				}
				return time.Minute
			}
			// hasLease checks that every lock has a lease of so many times its own.
			hasLease := func(times int) {
				t.Helper()
				for i := range n {
					want := time.Duration(times) * lease(i)
					if left := rdb.PTTL(t.Context(), s.names.lock(key(i))).Val(); left > want || left < want-30*time.Second {
						t.Errorf("%s has %v left, want about %v", key(i), left, want)
					}
				}
			}

			var acquires [n]acquire
			const arguments = callArgs + 2*n + n + 3
			for i, token := range do(arguments, func(i int) *Request {
				r := &acquires[i]
				r.ask = driver.AcquireRequest{Owner: fmt.Sprint("owner:", i)}
				r.keys[0], r.keys[1] = s.names.with(key(i), fenceSuffix)
				r.ms = [2]int64{clock.Ceil(lease(i), time.Millisecond), clock.Ceil(lease(i)+fenceTime, time.Millisecond)}
				r.Make(s, acquireScript, r.keys[0], r.room[:]).Keys(&r.keys[0], &r.keys[1]).
					Args(&r.ask.Owner, &r.ms[0], &r.ms[1], &r.waiter)
				r.common = 3
				return &r.Request
			}) {
				if got := rdb.HGet(t.Context(), s.names.lock(key(i)), fmt.Sprint("owner:", i)).Val(); got != fmt.Sprint(token) {
					t.Errorf("%s: its token is %q, want %v", key(i), got, token)
				}
			}
			hasLease(1)

			rest := func(i int) string {
				switch {
				case !wait:
					return ""
				case i == odd:
					return "another"
				}
				return "a second"
			}
			// All are held now: others are entered into the lists.
			waiter := func(i int) string {
				if i == odd {
					return "odd"
				}
				return "even"
			}
			var refusals [n]acquire
			for i, reply := range do(arguments, func(i int) *Request {
				r := &refusals[i]
				r.ask, r.waiter = driver.AcquireRequest{Owner: fmt.Sprint("late:", i)}, waiter(i)
				r.keys, r.ms = acquires[i].keys, acquires[i].ms
				r.Make(s, acquireScript, r.keys[0], r.room[:]).Keys(&r.keys[0], &r.keys[1]).
					Args(&r.ask.Owner, &r.ms[0], &r.ms[1], &r.waiter)
				r.common = 3
				return &r.Request
			}) {
				if list, _ := reply.([]any); len(list) != 4 || list[0] != fmt.Sprint("owner:", i) || list[2] != int64(1) || list[3].(int64) <= 0 {
					t.Errorf("%s is held: %v", key(i), reply)
				}
				if got := rdb.HGet(t.Context(), s.names.lock(key(i)), "q").Val(); got != waiter(i) {
					t.Errorf("%s: %q waits, want %q", key(i), got, waiter(i))
				}
				if rest(i) == "" {
					rdb.HDel(t.Context(), s.names.lock(key(i)), "q")
				} else {
					rdb.HSet(t.Context(), s.names.lock(key(i)), "q", rest(i))
				}
			}

			var renewals [n]Renewal
			for i, reply := range do(callArgs+n+n+1, func(i int) *Request {
				r := &renewals[i]
				r.Make(s, nil, "", r.room[:])
				r.Ask(renewScript, s.names.lock(key(i)), fmt.Sprint("owner:", i), 2*lease(i))
				return &r.Request
			}) {
				if want := int64(1); wait && reply != 2*want || !wait && reply != want {
					t.Errorf("renewing %s: %v", key(i), reply)
				}
			}
			hasLease(2)

			var releases [n]release
			for i, reply := range do(callArgs+n+n+2, func(i int) *Request {
				r := &releases[i]
				r.names[0] = s.names.lock(key(i))
				r.ask.Owner = fmt.Sprint("owner:", i)
				if i == odd {
					r.ask.Waiter = "a third"
				}
				r.Make(s, releaseScript, r.names[0], r.room[:]).Keys(&r.names[0]).
					Args(&r.ask.Owner, s.Publish(), (*string)(&r.ask.Waiter))
				r.common = 2
				return &r.Request
			}) {
				want := "1"
				if rest(i) != "" {
					want = "[" + rest(i) + " 1]"
				}
				if rest(i) != "" && i == odd {
					want = "[" + rest(i) + ",a third 2]"
				}
				if got := fmt.Sprint(reply); got != want {
					t.Errorf("releasing %s: %v, want %v", key(i), got, want)
				}
			}
			for _, left := range rdb.Keys(t.Context(), s.names.prefix+":*").Val() {
				if !strings.HasSuffix(left, fenceSuffix) {
					t.Errorf("%s is left", left)
				}
			}
		})
	}
}

// A reply that cannot be made, here because something else wrote to the key, is missing in
// the list, and does not keep the server in the script.
func TestACallOfSeveralEndsWithAReplyThatIsNone(t *testing.T) {
	t.Parallel()
	srv, k := redistest.Common(t)
	rdb := srv.Client(t, patiently)
	if err := rdb.HSet(t.Context(), k, "o", "no token").Err(); err != nil {
		t.Fatal(err)
	}
	list, err := rdb.Eval(t.Context(), acquireScript.source, []string{k, k + ":fence", k + "/2", k + "/2:fence"},
		"o", "p", 60_000, 60_000, "").Slice()
	if err != nil || len(list) != 3 || list[0] != "acquire" || list[1] != nil {
		t.Fatalf("%v, %v", list, err)
	}
	if token, ok := list[2].(int64); !ok || token <= 0 {
		t.Errorf("the lock behind it: %v", list[2])
	}
	if val, err := acquireScript.part(list, 0, 2); val != nil || err != nil {
		t.Errorf("the reply that is none: %v, %v", val, err)
	}
}

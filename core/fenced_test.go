package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/adapter"
	"github.com/interlock-go/interlock/core/memstore"
	"github.com/interlock-go/interlock/core/reason"
)

// errStale is the refusal of a fence, as of package fencing.
var errStale = fmt.Errorf("%w: stale", core.ErrLost)

// tokens is a fence in memory.
type tokens struct {
	mu     sync.Mutex
	latest map[string]int64
	asked  [][]core.Fence
}

func (t *tokens) claim(_ context.Context, fences []core.Fence) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = append(t.asked, slices.Clone(fences))
	for _, f := range fences {
		if f.Token < t.latest[f.Key] {
			return errStale
		}
	}
	for _, f := range fences {
		if t.latest == nil {
			t.latest = map[string]int64{}
		}
		t.latest[f.Key] = f.Token
	}
	return nil
}

// fenced is a request with a field of tokens; nil for none.
func fenced(field *string) *adapter.Message {
	m := &adapter.Message{Name: "debit", Metadata: map[string]string{"account": "42", "to": "7"}}
	if field != nil {
		m.Metadata[core.FencesHeader] = *field
	}
	return m
}

func text(s string) *string { return &s }

// serveFenced runs a request, and returns the reason of its refusal and the fences of its handler.
func serveFenced(ctx context.Context, rule *core.Guard, field *string) (why reason.Reason, seen []core.Fence) {
	refusal := rule.Do(ctx, fenced(field), func(ctx context.Context) bool {
		seen = core.Fences(ctx)
		return true
	})
	if refusal != nil {
		return refusal.Reason, nil
	}
	return "", seen
}

// A service that owns a resource must refuse the requests of a former holder of its lock.
func TestARequestOfAnOutdatedHolderIsRefusedBeforeItsHandler(t *testing.T) {
	const ok = reason.Reason("")
	long := strings.Repeat("a", 513)
	for name, c := range map[string]struct {
		field *string
		want  reason.Reason
	}{
		"the token of the holder":          {text("account/42=100"), ok},
		"a later token":                    {text("account/42=101"), ok},
		"the greatest token":               {text("account/42=9223372036854775807"), ok},
		"among tokens of other locks":      {text("account/41=1, account/42=100,\taccount/43=2"), ok},
		"escaped without need":             {text("%61ccount%2f42=100"), ok},
		"the token of the holder before":   {text("account/42=99"), reason.StaleToken},
		"no field":                         {nil, reason.TokenMissing},
		"an empty field":                   {text(""), reason.TokenMissing},
		"a greater token of another lock":  {text("account/41=1000"), reason.TokenMissing},
		"a lock with a longer name":        {text("account/420=1000"), reason.TokenMissing},
		"a name with another case":         {text("Account/42=1000"), reason.TokenMissing},
		"no token":                         {text("account/42"), reason.TokenMalformed},
		"an empty token":                   {text("account/42="), reason.TokenMalformed},
		"a token of zero":                  {text("account/42=0"), reason.TokenMalformed},
		"a negative token":                 {text("account/42=-1"), reason.TokenMalformed},
		"a token with a sign":              {text("account/42=+100"), reason.TokenMalformed},
		"a token in hexadecimal":           {text("account/42=0x64"), reason.TokenMalformed},
		"a token above 63 bits":            {text("account/42=9223372036854775808"), reason.TokenMalformed},
		"a token above 64 bits":            {text("account/42=18446744073709551717"), reason.TokenMalformed},
		"a key that is there twice":        {text("account/42=100, account/42=101"), reason.TokenMalformed},
		"a key that is there in two forms": {text("account/42=100, %61ccount/42=101"), reason.TokenMalformed},
		"no key":                           {text("=100"), reason.TokenMalformed},
		"a comma at the end":               {text("account/42=100,"), reason.TokenMalformed},
		"half an escape":                   {text("account/42%4=100"), reason.TokenMalformed},
		"a key that no lock can have":      {text("account/42=100, " + long + "=1"), reason.TokenMalformed},
		"another malformed pair":           {text("account/42=100, account/43=x"), reason.TokenMalformed},
		"more than 4096 bytes":             {text("account/42=100" + strings.Repeat(" ", 4096)), reason.TokenMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			fence := &tokens{latest: map[string]int64{"account/42": 100}}
			why, seen := serveFenced(t.Context(), core.Fenced("account/{account}", fence.claim), c.field)
			if why != c.want {
				t.Errorf("refused with %q; want %q", why, c.want)
			}
			if c.want == ok && (len(seen) != 1 || seen[0].Key != "account/42" || seen[0].Token < 100) {
				t.Errorf("the handler has the fences %v; want that of account/42", seen)
			}
			if claimed := len(fence.asked) > 0; claimed != (c.want == ok || c.want == reason.StaleToken) {
				t.Errorf("claimed: %v, though the request was answered with %q", claimed, why)
			}
		})
	}
}

// A proxy may join two fields or pass both on. Servers do not agree which field counts.
func TestTwoFieldsOfTokensAreMalformed(t *testing.T) {
	m := fenced(text("account/42=100"))
	m.Metadata[strings.ToLower(core.FencesHeader)] = "account/42=101"
	refusal := core.Fenced("account/{account}", (&tokens{}).claim).Do(t.Context(), m, func(context.Context) bool {
		t.Error("the handler ran")
		return true
	})
	if refusal == nil || refusal.Reason != reason.TokenMalformed {
		t.Errorf("%v; want %s", refusal, reason.TokenMalformed)
	}
}

func TestAllKeysOfARequestAreClaimedTogetherInOrder(t *testing.T) {
	fence := &tokens{}
	rule := core.Fenced("account/{account}", fence.claim, core.And("account/{to}"), core.And("account/{account}"))
	why, seen := serveFenced(t.Context(), rule, text("account/7=3, account/9=1, account/42=5"))
	want := []core.Fence{{Key: "account/42", Token: 5}, {Key: "account/7", Token: 3}}
	if why != "" || !slices.Equal(seen, want) || len(fence.asked) != 1 || !slices.Equal(fence.asked[0], want) {
		t.Errorf("%q, fences %v, claimed %v; want one claim of %v", why, seen, fence.asked, want)
	}
	if why, _ := serveFenced(t.Context(), rule, text("account/42=5")); why != reason.TokenMissing {
		t.Errorf("without the second token: %q; want %s", why, reason.TokenMissing)
	}
}

func TestWithAllowUnfencedATokenCountsWhereThereIsOne(t *testing.T) {
	fence := &tokens{latest: map[string]int64{"account/42": 100}}
	rule := core.Fenced("account/{account}", fence.claim, core.And("account/{to}"), core.AllowUnfenced())
	for field, want := range map[string]struct {
		why   reason.Reason
		seen  int
		claim int
	}{
		"":                             {"", 0, 0},
		"account/41=1":                 {"", 0, 0},
		"account/7=1":                  {"", 1, 1},
		"account/42=100, account/7=1":  {"", 2, 1},
		"account/42=99":                {reason.StaleToken, 0, 1},
		"account/42=99, account/7=100": {reason.StaleToken, 0, 1},
		"account/42":                   {reason.TokenMalformed, 0, 0},
	} {
		fence.asked = nil
		why, seen := serveFenced(t.Context(), rule, &field)
		if why != want.why || len(seen) != want.seen || len(fence.asked) != want.claim {
			t.Errorf("%q: %q, fences %v, claims %v; want %+v", field, why, seen, fence.asked, want)
		}
	}
}

func TestAFenceThatFailsRefusesTheRequest(t *testing.T) {
	failed := errors.New("failed")
	for want, err := range map[reason.Reason]error{
		reason.Unavailable:   fmt.Errorf("%w: %w", core.ErrUnavailable, failed),
		reason.Internal:      failed,
		reason.Misconfigured: core.ErrConfig,
		reason.StaleToken:    fmt.Errorf("at the fence: %w", errStale),
	} {
		rule := core.Fenced("account/{account}", func(context.Context, []core.Fence) error { return err })
		if why, _ := serveFenced(t.Context(), rule, text("account/42=1")); why != want {
			t.Errorf("%v: refused with %q; want %q", err, why, want)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	rule := core.Fenced("account/{account}", func(ctx context.Context, _ []core.Fence) error { return ctx.Err() })
	if why, _ := serveFenced(gone, rule, text("account/42=1")); why != reason.Canceled {
		t.Errorf("after the end of the request: %q; want %s", why, reason.Canceled)
	}
}

// The context of the request ends with a lock of this service, which says nothing about the
// caller's.
func TestTheLossOfALockOfTheServiceDoesNotOutdateItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := lockers(t, store, 1)[0]
		lease, err := l.Lock(t.Context(), "shard/1")
		if err != nil {
			t.Fatal(err)
		}
		rule := core.Fenced("account/{account}", func(ctx context.Context, _ []core.Fence) error {
			store.Expire("shard/1")
			_ = lease.Check(ctx)
			return context.Cause(ctx)
		})
		if why, _ := serveFenced(lease.Context(), rule, text("account/42=1")); why != reason.Lost {
			t.Errorf("refused with %q; want %s", why, reason.Lost)
		}
	})
}

// A gateway holds a lock and calls a service, which passes its work on: the resource behind
// sees the token of the gateway.
func TestTokensGoFromServiceToService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gateway := lockers(t, memstore.New(), 1)[0]
		ledger := &tokens{}
		middle := core.Fenced("account/{account}", func(context.Context, []core.Fence) error { return nil })
		resource := core.Fenced("account/{account}", ledger.claim)
		send := func(lease *core.Lease) (why reason.Reason) {
			t.Helper()
			field, err := core.FencesFor(lease.Context())
			wantErr(t, err, nil)
			refusal := middle.Do(t.Context(), fenced(&field), func(ctx context.Context) bool {
				field, err := core.FencesFor(ctx)
				wantErr(t, err, nil)
				why, _ = serveFenced(t.Context(), resource, &field)
				return true
			})
			if refusal != nil {
				t.Errorf("the service in between refuses: %v", refusal)
			}
			return why
		}
		first, err := gateway.Lock(t.Context(), "account/42")
		wantErr(t, err, nil)
		if why := send(first); why != "" {
			t.Errorf("the holder is refused with %q", why)
		}
		wantErr(t, first.Release(t.Context()), nil)
		second, err := gateway.Lock(t.Context(), "account/42")
		wantErr(t, err, nil)
		defer func() { _ = second.Release(t.Context()) }()
		if why := send(second); why != "" {
			t.Errorf("the next holder is refused with %q", why)
		}
		if why := send(first); why != reason.StaleToken {
			t.Errorf("the former holder: %q; want %s", why, reason.StaleToken)
		}
	})
}

// A shared lock has several holders: no token of theirs is the latest.
func TestSharersAndPermitsSendNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lockers(t, memstore.New(), 1)[0]
		shared, err := l.LockShared(t.Context(), "account/42")
		wantErr(t, err, nil)
		defer func() { _ = shared.Release(t.Context()) }()
		permit, err := l.Permit(shared.Context(), "account/7", 2)
		wantErr(t, err, nil)
		defer func() { _ = permit.Release(t.Context()) }()
		for name, ctx := range map[string]context.Context{"a shared lock": permit.Context(), "no lock": t.Context()} {
			if field, err := core.FencesFor(ctx); field != "" || err != nil {
				t.Errorf("under %s %q, %v is sent; want nothing", name, field, err)
			}
		}
	})
}

// A key of a lock may have any bytes, and a header field may not.
func TestTokensOfKeysWithAnyBytesArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lockers(t, memstore.New(), 1)[0]
		var all strings.Builder
		for b := range 256 {
			all.WriteByte(byte(b))
		}
		for _, key := range []string{all.String(), "a,b=1, c=2", "%", "%2C", "a%2Fb", " ", "é", "account/42", "\x00", strings.Repeat("\xff", 512)} {
			lease, err := l.Lock(t.Context(), key)
			wantErr(t, err, nil)
			field, err := core.FencesFor(lease.Context())
			wantErr(t, err, nil)
			if strings.ContainsFunc(field, func(r rune) bool { return r <= ' ' || r > '~' }) {
				t.Errorf("%q is no text of a header field", field)
			}
			rule := core.Fenced("", (&tokens{}).claim, core.KeyFunc(func(context.Context, core.Request) ([]string, error) {
				return []string{key}, nil
			}))
			want := []core.Fence{{Key: key, Token: lease.Token()}}
			if why, seen := serveFenced(t.Context(), rule, &field); why != "" || !slices.Equal(seen, want) {
				t.Errorf("%q arrives as %q, %v; want %v", field, why, seen, want)
			}
			wantErr(t, lease.Release(t.Context()), nil)
		}
	})
}

// A field that is cut off would leave a resource open, so a request with too many tokens is not sent.
func TestTokensThatDoNotFitAreAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lockers(t, memstore.New(), 1)[0]
		var keys []string
		for i := range 200 {
			keys = append(keys, fmt.Sprintf("account/%d", i))
		}
		lease, err := l.LockAll(t.Context(), keys)
		wantErr(t, err, nil)
		defer func() { _ = lease.Release(t.Context()) }()
		field, err := core.FencesFor(lease.Context())
		if wantErr(t, err, core.ErrConfig); field != "" {
			t.Errorf("the field has %d bytes", len(field))
		}
	})
}

func TestFencedRefusesOptionsOfLocks(t *testing.T) {
	claim := (&tokens{}).claim
	build := func(f func()) (err error) {
		defer func() { err, _ = recover().(error) }()
		f()
		return nil
	}
	user := core.FromContext("user")
	for name, f := range map[string]func(){
		"nil":          func() { core.Fenced("account/{id}", nil) },
		"template":     func() { core.Fenced("account/{", claim) },
		"Wait":         func() { core.Fenced("account/{id}", claim, core.Wait(5*time.Second)) },
		"Watchdog":     func() { core.Fenced("account/{id}", claim, core.Watchdog(time.Minute)) },
		"TTL":          func() { core.Fenced("account/{id}", claim, core.TTL(time.Minute)) },
		"MaxHold":      func() { core.Fenced("account/{id}", claim, core.MaxHold(time.Minute)) },
		"FailOpen":     func() { core.Fenced("account/{id}", claim, core.FailOpen()) },
		"ShareReads":   func() { core.Fenced("account/{id}", claim, core.ShareReads()) },
		"CheckAnswer":  func() { core.Fenced("account/{id}", claim, core.CheckAnswer()) },
		"AnswerFirst":  func() { core.Fenced("account/{id}", claim, core.AnswerFirst()) },
		"OnLost":       func() { core.Fenced("account/{id}", claim, core.OnLost(func(core.Loss) {})) },
		"PerPrincipal": func() { core.Fenced("account/{id}", claim, core.PerPrincipal(user, 1, 1)) },
		"AllowUnfenced of a rule with a lock": func() {
			core.Serialize(lockers(t, memstore.New(), 1)[0], "account/{id}", core.AllowUnfenced())
		},
	} {
		if err := build(f); !errors.Is(err, core.ErrConfig) {
			t.Errorf("%s: %v; want %v", name, err, core.ErrConfig)
		}
	}
	rule := core.Fenced("user/{ctx.user}", claim, core.ContextFunc("user", user), core.Name("debit"), core.ReadBody(10))
	if rule.Name() != "debit" || rule.Observer() != nil || len(rule.Placeholders()) != 1 {
		t.Errorf("name %q, observer %v, placeholders %v; want those of a rule without a locker", rule.Name(), rule.Observer(), rule.Placeholders())
	}
}

// FuzzTokens holds the fences of a rule against the field that they come from.
func FuzzTokens(f *testing.F) {
	f.Add("account/42=1", "account/42")
	f.Add("a=1, b=2", "b")
	f.Add("%00=1,%=2", "\x00")
	f.Fuzz(func(t *testing.T, field, key string) {
		rule := core.Fenced("", func(context.Context, []core.Fence) error { return nil },
			core.KeyFunc(func(context.Context, core.Request) ([]string, error) { return []string{key}, nil }))
		why, seen := serveFenced(t.Context(), rule, &field)
		switch {
		case why == "" && (len(seen) != 1 || seen[0].Key != key || seen[0].Token < 1):
			t.Errorf("%q gives %v; want a token of %q", field, seen, key)
		case why != "" && why != reason.TokenMissing && why != reason.TokenMalformed && why != reason.BadKey:
			t.Errorf("%q is refused with %q", field, why)
		}
	})
}

// A service in between has no rule for the key, and the next service has.
func TestTokensPassAServiceInBetween(t *testing.T) {
	field := "account/42=5, account/43=7"
	claim := func(context.Context, []core.Fence) error { return nil }
	for name, middle := range map[string]struct {
		rule *core.Guard
		want string // the request to the next service
	}{
		"Relay":                  {core.Relay(), field},
		"Fenced with other keys": {core.Fenced("order/7", claim, core.AllowUnfenced()), field},
		"Fenced with a key":      {core.Fenced("account/{header.account}", claim), field},
	} {
		refusal := middle.rule.Do(t.Context(), fenced(&field), func(ctx context.Context) bool {
			if sent, err := core.FencesFor(ctx); err != nil || sent != middle.want {
				t.Errorf("%s: %q, %v; want %q", name, sent, err, middle.want)
			}
			return true
		})
		if refusal != nil {
			t.Errorf("%s: the refusal %+v; want the request let through", name, refusal)
		}
	}
	// A rule that locks has callers outside, whose tokens may be forged.
	l, err := core.New(memstore.New())
	if err != nil {
		t.Fatal(err)
	}
	refusal := core.Serialize(l, "order/7").Do(t.Context(), fenced(&field), func(ctx context.Context) bool {
		if sent, err := core.FencesFor(ctx); err != nil || strings.Contains(sent, "account") {
			t.Errorf("under Serialize: %q, %v; want no token of a caller", sent, err)
		}
		return true
	})
	if err := l.Close(t.Context()); refusal != nil || err != nil {
		t.Errorf("the refusal %+v, and Close: %v; want neither", refusal, err)
	}
}

func TestARelayRefusesMalformedTokens(t *testing.T) {
	field := "account/42=nine"
	if why, _ := serveFenced(t.Context(), core.Relay(), &field); why != reason.TokenMalformed {
		t.Errorf("%q; want %q", why, reason.TokenMalformed)
	}
}

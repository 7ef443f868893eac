package idemtest

import (
	"context"
	"errors"
	"strings"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
)

// xor is a Seal that hides the text, and nothing else.
func xor(b []byte) ([]byte, error) {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = b[i] ^ 0x55
	}
	return out, nil
}

// stored is all that the store has of records.
func (f *fixture) stored() string {
	f.Helper()
	var all strings.Builder
	for _, key := range f.rdb.Keys(f.Context(), "interlock:idem:*").Val() {
		fields, err := f.rdb.HGetAll(f.Context(), key).Result()
		if err != nil {
			f.Error(err)
		}
		for _, value := range fields {
			all.WriteString(value)
		}
	}
	return all.String()
}

// sealing are the cases of answers that are not stored as they are, or not sent.
var sealing = []row{
	{name: "a sealed answer is replayed", run: func(f *fixture) {
		var b bank
		plain := f.engine()
		sealed := f.serve(plain.With(idempotency.Seal(xor, xor)), b.pay)
		f.want("first", sealed.pay("k"), fresh(1))
		f.want("again", sealed.pay("k"), replayed(1))
		if strings.Contains(f.stored(), "payment 1") {
			f.Error("a sealed answer is stored in plain text")
		}
		e := f.serve(plain, b.pay)
		f.want("without Seal", e.pay("k"), refused(core.ReasonNoRecord))
		f.want("in plain text", e.pay("l"), fresh(2))
		f.want("stored before Seal", sealed.pay("l"), replayed(2))
		if !strings.Contains(f.stored(), "payment 2") {
			f.Error("the test does not see what is stored")
		}
	}},
	{name: "an answer that cannot be sealed is sent and not stored", run: func(f *fixture) {
		Logged(f)
		for name, seal := range map[string]func([]byte) ([]byte, error){
			"error": func([]byte) ([]byte, error) { return nil, errors.New("no key") },
			"panic": func([]byte) ([]byte, error) { panic("no key") },
		} {
			var b bank
			e := f.serve(f.engine(idempotency.Seal(seal, xor)), b.pay)
			f.want(name+": first", e.pay(name), fresh(1))
			f.want(name+": again", e.pay(name), refused(core.ReasonResponseUnavailable))
		}
	}},
	{name: "an answer that cannot be opened", run: func(f *fixture) {
		Logged(f)
		var b bank
		e := f.serve(f.engine(idempotency.Seal(xor, func([]byte) ([]byte, error) { return nil, errors.New("no key") })), b.pay)
		f.want("first", e.pay("k"), fresh(1))
		f.want("again", e.pay("k"), refused(core.ReasonNoRecord))
	}},
	{name: "an answer over the limit whose lock was lost is not sent", run: func(f *fixture) {
		rule := core.Serialize(f.locker(), "account/{id}", core.CheckAnswer())
		e := f.serve(f.engine(idempotency.Under(rule), idempotency.MaxResponse(100)),
			func(ctx context.Context, _ string, _ int64) (Outcome, string) {
				if n := f.rdb.Del(context.WithoutCancel(ctx), "interlock:{account/42}").Val(); n != 1 {
					f.Error("the lock is not there")
				}
				return OK, strings.Repeat("done, so it thinks; ", 1000)
			})
		f.want("first", e.pay("k"), refused(core.ReasonLost))
		f.want("its outcome is not stored", e.pay("k"), refused(core.ReasonInFlight))
	}},
}

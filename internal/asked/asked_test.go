package asked_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/idempotency"
	"github.com/interlock-go/interlock/core/reason"
	"github.com/interlock-go/interlock/internal/asked"
	_ "github.com/interlock-go/interlock/internal/bubble"
)

// all are the kinds of answers, with each reason of a refusal.
func all() (answers []asked.Answer) {
	for kind := asked.Unsent; kind <= asked.Foreign; kind++ {
		answers = append(answers, asked.Answer{Kind: kind})
	}
	for _, why := range []reason.Reason{
		reason.BadKey, reason.BodyTooLarge, reason.BodyIncomplete, reason.BodyTimeout, reason.Held, reason.Full, reason.QueueFull,
		reason.Superseded, reason.PrincipalLimit, reason.Deadline, reason.Canceled, reason.Unavailable, reason.NotReplicated,
		reason.KeyOccupied, reason.Closing, reason.Misconfigured, reason.Internal, reason.KeyMissing, reason.KeyMalformed,
		reason.NoPrincipal, reason.ContentType, reason.KeyReused, reason.InFlight, reason.OutcomeUnknown, reason.ResponseUnavailable,
		reason.ResponseTooLarge, reason.RolledBack, reason.NotAcceptable, reason.KeyExpired, reason.NoRecord, "a-later-reason",
	} {
		answers = append(answers, asked.Answer{Kind: asked.Refused, Reason: why}, asked.Answer{Kind: asked.Refused, Reason: why, Ran: true})
	}
	return append(answers, asked.Answer{Kind: asked.Refused, Reason: reason.Lost, Ran: true}, asked.Answer{Kind: asked.Refused, Reason: reason.MaxHold, Ran: true})
}

// settles are the answers that tell the outcome of all tries before.
func settles(a asked.Answer) bool {
	switch a.Kind {
	case asked.Success, asked.Stored:
		return true
	case asked.Refused:
		return a.Reason == reason.KeyReused || a.Reason == reason.ResponseUnavailable || a.Reason == reason.NotAcceptable
	}
	return false
}

// After a try without an answer each answer leaves the outcome unknown, unless the endpoint
// itself tells the outcome of the request.
func TestAnAnswerThatIsNotTheEndpointsDoesNotSettleALostTry(t *testing.T) {
	for _, before := range []bool{false, true} {
		for _, a := range all() {
			r := asked.New(before)
			if !before {
				r.After(asked.Answer{Kind: asked.Unanswered})
			}
			step := r.After(a)
			unknown := step.Outcome == asked.Unknown
			if a.Kind == asked.NotNow && before { // the endpoint had no answer for the key
				if unknown {
					t.Errorf("%+v: a key of the caller's stays unknown", a)
				}
				continue
			}
			settled := settles(a) && (a.Reason != reason.KeyReused || !before)
			if unknown == settled {
				t.Errorf("%+v, before %v: the outcome is %v; want it settled: %v", a, before, step.Outcome, settled)
			}
			if unknown != errors.Is(step.Err, idempotency.ErrOutcomeUnknown) {
				t.Errorf("%+v: the outcome is %v, and the error is %v", a, step.Outcome, step.Err)
			}
			if unknown != r.Unknown() {
				t.Errorf("%+v: the outcome is %v, and of the request %v", a, step.Outcome, r.Unknown())
			}
		}
	}
}

func TestTheFirstAnswerOfARequestThatNobodySentBefore(t *testing.T) {
	type want struct {
		outcome asked.Outcome
		again   bool
		err     error
	}
	refused := func(why reason.Reason, ran bool) asked.Answer {
		return asked.Answer{Kind: asked.Refused, Reason: why, Ran: ran}
	}
	for a, w := range map[asked.Answer]want{
		{Kind: asked.Unsent}:                    {asked.Nothing, true, nil},
		{Kind: asked.Unanswered}:                {asked.Unknown, true, idempotency.ErrOutcomeUnknown},
		{Kind: asked.Success}:                   {asked.Answered, false, nil},
		{Kind: asked.Stored}:                    {asked.Answered, false, nil},
		{Kind: asked.NotNow}:                    {asked.Answered, false, nil},
		{Kind: asked.Foreign}:                   {asked.Answered, false, nil},
		{Kind: asked.Failed}:                    {asked.Unknown, true, idempotency.ErrOutcomeUnknown},
		{Kind: asked.FailedForGood}:             {asked.Unknown, false, idempotency.ErrOutcomeUnknown},
		{Kind: asked.Busy}:                      {asked.Nothing, true, nil},
		refused(reason.Held, false):             {asked.Nothing, true, nil},
		refused(reason.NoRecord, false):         {asked.Nothing, true, nil},
		refused(reason.RolledBack, false):       {asked.Nothing, true, nil},
		refused(reason.KeyMissing, false):       {asked.Nothing, false, nil},
		refused(reason.ResponseTooLarge, false): {asked.Nothing, false, nil},
		refused(reason.InFlight, false):         {asked.Unknown, true, idempotency.ErrOutcomeUnknown},
		refused(reason.Lost, true):              {asked.Unknown, true, idempotency.ErrOutcomeUnknown},
		refused(reason.OutcomeUnknown, false):   {asked.Unknown, false, idempotency.ErrOutcomeUnknown},
		refused(reason.KeyExpired, false):       {asked.Unknown, false, idempotency.ErrKeyExpired},
		refused(reason.NotAcceptable, false):    {asked.Answered, false, idempotency.ErrResponseUnavailable},
		refused(reason.KeyReused, false):        {asked.Nothing, false, idempotency.ErrKeyReused},
		refused(reason.Superseded, false):       {asked.Nothing, false, nil},
		refused(reason.Superseded, true):        {asked.Unknown, false, core.ErrSuperseded},
	} {
		r := asked.New(false)
		step := r.After(a)
		if step.Outcome != w.outcome || step.Again != w.again || !errors.Is(step.Err, w.err) {
			t.Errorf("%+v: %+v; want %+v", a, step, w)
		}
	}
}

// An earlier attempt can have sent the key with another body, and have been carried out.
func TestAKeyOfAnotherBodyLeavesTheOutcomeOfEarlierAttemptsUnknown(t *testing.T) {
	reused := asked.Answer{Kind: asked.Refused, Reason: reason.KeyReused}
	for _, before := range []bool{false, true} {
		for _, lost := range []bool{false, true} {
			r := asked.New(before)
			if lost {
				r.After(asked.Answer{Kind: asked.Unanswered})
			}
			step := r.After(reused)
			if step.Again || !errors.Is(step.Err, idempotency.ErrKeyReused) || errors.Is(step.Err, idempotency.ErrOutcomeUnknown) != before || r.Unknown() != before {
				t.Errorf("before %v, lost %v: %+v; want ErrKeyReused, and ErrOutcomeUnknown: %v", before, lost, step, before)
			}
		}
	}
}

// The status alone says nothing to a caller that could release its lock.
func TestTheReasonOfTheLastAnswerReachesTheCaller(t *testing.T) {
	r := asked.New(true)
	step := r.After(asked.Answer{Kind: asked.Refused, Reason: reason.HeldByCaller, Status: "status 409 Conflict"})
	if step.Again || !errors.Is(step.Err, core.ErrHeldByCaller) || !errors.Is(step.Err, idempotency.ErrOutcomeUnknown) ||
		!strings.Contains(step.Err.Error(), "409 Conflict (held-by-caller)") || r.Reason() != reason.HeldByCaller {
		t.Errorf("%+v, %q; want ErrOutcomeUnknown and ErrHeldByCaller, and the reason in the text", step, r.Reason())
	}
}

// A stored answer of an endpoint without marks on first answers has its mark at the next try.
func TestAForeignAnswerAfterALostTryIsAskedForOnceMore(t *testing.T) {
	r := asked.New(false)
	r.After(asked.Answer{Kind: asked.Unanswered})
	first, second := r.After(asked.Answer{Kind: asked.Foreign, Status: "403 Forbidden"}), r.After(asked.Answer{Kind: asked.Foreign})
	if !first.Again || second.Again {
		t.Errorf("%+v, then %+v; want one more try", first, second)
	}
	if stored := r.After(asked.Answer{Kind: asked.Stored}); stored.Outcome != asked.Answered || r.Unknown() {
		t.Errorf("%+v; want a marked answer to settle the request", stored)
	}
}

func TestAMarkSaysWhyAndWhetherTheHandlerRan(t *testing.T) {
	for value, want := range map[string]asked.Answer{
		"held":     {Kind: asked.Refused, Reason: reason.Held},
		"lost;ran": {Kind: asked.Refused, Reason: reason.Lost, Ran: true},
		"answered": {},
		"":         {},
	} {
		if got, ok := asked.Marked(value); got != want || ok != (want.Kind == asked.Refused) {
			t.Errorf("%q: %+v, %v; want %+v", value, got, ok, want)
		}
	}
}

// A server that dies leaves its keys in flight for 30 s.
func TestTriesLastAsLongAsTheClaimOfADeadServer(t *testing.T) {
	inFlight, held := asked.Answer{Kind: asked.Refused, Reason: reason.InFlight}, asked.Answer{Kind: asked.Refused, Reason: reason.Held}
	for _, c := range []struct {
		tries       int
		answer      asked.Answer
		least, most time.Duration
	}{
		{0, inFlight, 31 * time.Second, time.Minute},
		{3, inFlight, 2 * time.Second, 2 * time.Second},
		{0, held, 7 * time.Second, 7 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			p, began := asked.NewPatience(c.tries), time.Now()
			for p.Left(c.answer) {
				time.Sleep(time.Second)
			}
			if d := time.Since(began); d < c.least || d > c.most {
				t.Errorf("%d tries of %s, one in a second, last %v; want %v to %v", c.tries, c.answer.Reason, d, c.least, c.most)
			}
		})
	}
}

package reason_test

import (
	"strings"
	"testing"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/core/reason"
)

// all are the reasons.
var all = []reason.Reason{
	reason.BadKey, reason.BodyTooLarge, reason.BodyIncomplete, reason.BodyTimeout, reason.Held, reason.Full, reason.QueueFull, reason.Superseded, reason.HeldByCaller,
	reason.StaleToken, reason.TokenMissing, reason.TokenMalformed,
	reason.PrincipalLimit, reason.Deadline, reason.Canceled, reason.Unavailable, reason.NotReplicated, reason.KeyOccupied,
	reason.Closing, reason.Lost, reason.MaxHold, reason.Misconfigured, reason.Internal, reason.KeyMissing, reason.KeyMalformed,
	reason.NoPrincipal, reason.ContentType, reason.KeyReused, reason.InFlight, reason.OutcomeUnknown,
	reason.ResponseUnavailable, reason.ResponseTooLarge, reason.RolledBack, reason.NotAcceptable, reason.KeyExpired, reason.NoRecord,
}

// A client that follows the advice repeats what passes by itself, and nothing that may
// have happened.
func TestAdviceAgreesWithWhatIsRetryable(t *testing.T) {
	for _, r := range all {
		advice := r.Advice()
		if again := strings.Contains(advice, "again later"); again != (&core.Refusal{Reason: r}).Retryable() {
			t.Errorf("%s: %q", r, advice)
		}
		switch r {
		case reason.Lost, reason.MaxHold, reason.OutcomeUnknown, reason.ResponseUnavailable, reason.KeyExpired:
			if !strings.Contains(advice, "ind out") {
				t.Errorf("%s: %q", r, advice)
			}
		}
	}
}

package record

import "time"

// StepRequest stores the steps of a request with its claim. A store does not read Log: it keeps the
// text, and returns it with the claim of the next attempt ([ClaimReply.Steps]).
type StepRequest struct {
	ID, Token        string
	Lease, Retention time.Duration
	// Log has all steps of the request so far. A text of one token begins with each earlier text of
	// the same token, and with the steps that its claim returned. The store keeps the longer of two
	// texts, with its Last and Open, so a request that comes late changes nothing. If neither is the
	// beginning of the other, Step returns driver.ErrNotOwner.
	Log []byte
	// Last is the name of the last step with an outcome in Log, for a list ([View]).
	Last string
	// Open is the name of a step that is under way and must not run twice; empty if there is none.
	// While it is set, the record counts as marked.
	Open     string
	Deadline time.Time
}

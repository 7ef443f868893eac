package carrier

// ResultHeader is the header field of HTTP responses that says whose answer they are; package
// idempotency describes it. Package core writes it, and cannot import that package.
const ResultHeader = "Interlock-Result"

// Result returns the value of [ResultHeader] for a refusal.
func Result(reason string, ran bool) string {
	if ran {
		return reason + ";ran"
	}
	return reason
}

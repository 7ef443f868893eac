package reason

// Advice returns what a client can do about a refusal, after [Reason.Text]: in words for
// a person, or for a model that calls a tool. It is a fixed text. It does not say when to
// try again.
func (r Reason) Advice() string {
	switch r {
	case Held, Full, QueueFull, PrincipalLimit, Unavailable, NotReplicated, Closing, RolledBack, InFlight, NoRecord:
		return "Send the same request again later, with the same idempotency key if it has one."
	case Deadline:
		return "Send the same request again, and allow it more time."
	case Canceled, BodyIncomplete, BodyTimeout:
		return "Send the same request again if it is still wanted."
	case Superseded:
		return "Do not send the request again: the newer request counts."
	case HeldByCaller:
		return "Release the lock before you send the request, or let the service that is asked take it."
	case StaleToken:
		return "Take the lock of the resource again, look at the resource, and send the request under the new lock."
	case TokenMissing:
		return "Take the lock of the resource, and send its fencing token with the request."
	case TokenMalformed:
		return "Send each key once, with the fencing token of its lock."
	case BadKey:
		return "Give each value that names the resource: text, a whole number or a boolean."
	case BodyTooLarge:
		return "Send a shorter request."
	case KeyMissing:
		return "Make a new key for each request, and send the same key with each repetition of the request."
	case KeyMalformed:
		return "Send the request again with another key."
	case KeyReused:
		return "For the answer to the first request, repeat that request exactly. For another request, make a new key."
	case KeyExpired:
		return "Find out whether the first request was carried out before you make a new key."
	case NotAcceptable:
		return "Send the request again with the Accept-Encoding of the first request."
	case OutcomeUnknown:
		return "Do not send the request with another key. Find out what happened in another way, or ask a person."
	case ResponseUnavailable:
		return "Do not send the request again. Find out in another way what it did."
	case Lost, MaxHold:
		return "Find out whether the request was carried out before you send it again."
	}
	return "The same request fails again. Tell the operator of the server."
}

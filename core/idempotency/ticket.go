package idempotency

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/internal/ticket"
)

// The errors of [Engine.TakeOver] that say why a ticket does not give a claim. After
// ErrTicketTaken the message comes again later; after each of the others it is done with.
var (
	// ErrTicketTaken says that another job has the claim at this moment. If that job dies, the
	// ticket can be taken again after its [Lease].
	ErrTicketTaken = errors.New("interlock: the ticket of a request is taken: a job is carrying it out")
	// ErrTicketFinished says that the final answer of the request is stored.
	ErrTicketFinished = errors.New("interlock: the ticket of a request is finished: its final answer is stored")
	// ErrTicketRanOut says that the ticket counts no more: its handler failed, a retry was carried
	// out after its time, the job that had it has handed the claim on, or the record is not in
	// this store, or not any more.
	ErrTicketRanOut = errors.New("interlock: the ticket of a request has run out: another attempt has the request, or this store has no record of it")
	// ErrTicketMalformed says that a text is no ticket of [HandOver].
	ErrTicketMalformed = errors.New("interlock: not a ticket of a request")
)

// Ticket is the right to go on with a request that was handed over ([HandOver]). It is a text
// for a message or a row, of at most 300 bytes. A caller with the text can take the claim and
// answer the request, so String, and the value in a log of log/slog, do not show it:
// [Ticket.MarshalText] does. The zero value is no ticket, and its text is empty. Tickets can be
// compared with ==.
type Ticket struct {
	id          string
	token       string
	fingerprint [32]byte
	protocol    string
	hops        int // how often the claim was handed over before, and once for this
}

// ticketProtocols are the protocols of requests that can be handed over, by their bytes in a
// ticket.
var ticketProtocols = map[string]byte{endpoint.HTTP: 'h', endpoint.GRPC: 'g'}

// String returns a text that does not show the ticket: the first characters of the name of the
// record.
func (t Ticket) String() string {
	if t == (Ticket{}) {
		return "no ticket"
	}
	return "ticket of request " + t.id[:8]
}

// GoString is [Ticket.String].
func (t Ticket) GoString() string { return t.String() }

// LogValue implements [slog.LogValuer]. It returns [Ticket.String].
func (t Ticket) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText returns the text of the ticket. The error is always nil.
func (t Ticket) MarshalText() ([]byte, error) {
	if t == (Ticket{}) {
		return nil, nil
	}
	b, _ := base64.RawURLEncoding.DecodeString(t.id) // a name of a record is made like that
	b = append(b, t.fingerprint[:]...)
	b = append(b, ticketProtocols[t.protocol], byte(t.hops))
	return []byte(ticket.Encode(ticket.ClaimKind, append(b, t.token...))), nil
}

// UnmarshalText reads the text of a ticket. Its error matches [ErrTicketMalformed], says
// whether the text is too long, something else, or was changed, and does not show it.
func (t *Ticket) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*t = Ticket{}
		return nil
	}
	b, err := ticket.Decode(ticket.ClaimKind, string(text))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTicketMalformed, err)
	}
	const fixed = 32 + 32 + 2
	if len(b) <= fixed || len(b) > fixed+maxToken || b[65] == 0 {
		return fmt.Errorf("%w: %w", ErrTicketMalformed, errTicketParts)
	}
	read := Ticket{
		id: base64.RawURLEncoding.EncodeToString(b[:32]), fingerprint: [32]byte(b[32:64]),
		hops: int(b[65]), token: string(b[fixed:]),
	}
	for protocol, letter := range ticketProtocols {
		if letter == b[64] {
			read.protocol = protocol
		}
	}
	if read.protocol == "" || strings.Trim(read.token, "0123456789abcdef:") != "" {
		return fmt.Errorf("%w: %w", ErrTicketMalformed, errTicketParts)
	}
	*t = read
	return nil
}

var errTicketParts = errors.New("it does not have the parts of a ticket")

// maxToken is the length of the longest token of a claim, in bytes (tokens.next).
const maxToken = 53

// maxHops is how often a claim can be handed over.
const maxHops = 255

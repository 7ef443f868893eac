package idempotency

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"unique"

	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/internal/ticket"
)

// The errors of [Engine.TakeOver] that say why a ticket does not give a claim. After
// ErrTicketTaken the message comes again later; after each of the others it is done with.
var (
	// ErrTicketTaken says that another job has the claim at this moment, or still the handler, whose
	// transaction is not committed yet. If that job dies, the ticket can be taken again after its [Lease].
	ErrTicketTaken = errors.New("interlock: the ticket of a request is taken: a job is carrying it out, or its handler has not ended")
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
// answer the request, so it is a secret: printing or logging a Ticket shows nothing of it.
// [Ticket.MarshalText] returns the text, and so encoding/json writes it. The zero value is no ticket, and its text is
// empty. Tickets can be compared with ==.
type Ticket struct {
	// body is a pointer to a text, since printing a struct with an unexported Ticket shows the
	// contents of any other pointer for some verbs.
	body unique.Handle[string]
}

// ticketParts is the contents of a Ticket.
type ticketParts struct {
	id          [32]byte // of the record: a hash
	secret      [16]byte // of the attempt that handed over; tokenOf makes its token
	fingerprint [32]byte
	protocol    string
	hops        int // how often the claim was handed over before, and once for this
}

// record is the name of the record.
func (p *ticketParts) record() string { return base64.RawURLEncoding.EncodeToString(p.id[:]) }

// ticket makes the Ticket with these contents.
func (p *ticketParts) ticket() Ticket {
	b := append(p.id[:], p.fingerprint[:]...)
	b = append(b, ticketProtocols[p.protocol], byte(p.hops))
	return Ticket{unique.Make(string(append(b, p.secret[:]...)))}
}

// read reads the body of a ticket.
func (p *ticketParts) read(body []byte) error {
	if len(body) != 32+32+2+16 || body[65] == 0 {
		return errTicketParts
	}
	p.id, p.fingerprint, p.hops, p.secret = [32]byte(body), [32]byte(body[32:]), int(body[65]), [16]byte(body[66:])
	for protocol, letter := range ticketProtocols {
		if letter == body[64] {
			p.protocol = protocol
			return nil
		}
	}
	return errTicketParts
}

// parts returns the contents of a Ticket that is not zero.
func (t Ticket) parts() (p ticketParts) {
	_ = p.read([]byte(t.body.Value())) // ticketParts.ticket has made it
	return p
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
	parts := t.parts()
	return "ticket of request " + parts.record()[:8]
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
	return []byte(ticket.Encode(ticket.ClaimKind, []byte(t.body.Value()))), nil
}

// UnmarshalText reads the text of a ticket. Its error matches [ErrTicketMalformed], says
// whether the text is too long, something else, or was changed, and does not show it.
func (t *Ticket) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*t = Ticket{}
		return nil
	}
	var parts ticketParts
	body, err := ticket.Decode(ticket.ClaimKind, string(text))
	if err == nil {
		err = parts.read(body)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrTicketMalformed, err)
	}
	*t = parts.ticket()
	return nil
}

var errTicketParts = errors.New("it does not have the parts of a ticket")

// maxHops bounds the hand-overs of a claim.
const maxHops = 255

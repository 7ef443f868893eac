package core

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/interlock-go/interlock/core/driver"
	codec "github.com/interlock-go/interlock/core/internal/ticket"
)

const (
	// maxTicketKey is the length of the longest key that a ticket has room for.
	maxTicketKey = 158
	// ticketKind begins the text of each ticket of a lock.
	ticketKind = "ilt1-"
	// ticketHead is the length of the fixed part: kind, locker, secret, token, end and space.
	ticketHead = 2 + 16 + 16 + 8 + 8 + 8
)

// The errors about tickets. All match ErrTicket. After each of them the lock is as it was.
var (
	// ErrTicket says that a ticket cannot be used. If the error matches none of the three errors
	// below, the text was cut or changed, the ticket belongs to another store or prefix, the
	// store has lost the lock, or the ticket is so old that the store does not know any more
	// whether it was taken over.
	ErrTicket = errors.New("interlock: the ticket cannot be used")

	// ErrTicketTaken says that the ticket was taken over before. That says nothing about the
	// work: the taker may be at it, may have finished it, or may have died.
	ErrTicketTaken = fmt.Errorf("%w: it was taken over before", ErrTicket)

	// ErrTicketRanOut says that the time of the ticket has passed, and that no caller had taken it over.
	ErrTicketRanOut = fmt.Errorf("%w: its time has passed", ErrTicket)

	// ErrTicketRevoked says that an operator has released the lock of the ticket.
	ErrTicketRevoked = fmt.Errorf("%w: an operator has released its lock", ErrTicket)
)

// errTicketValue says that a text with a right checksum has no values of a ticket.
var errTicketValue = errors.New("a value in it is not of a ticket")

// Ticket is the right to go on with a lock that was handed over ([Lease.HandOver]). A caller that has
// the ticket can take the lock ([Locker.TakeOver]), so it is a secret: [Ticket.Text] returns it for a
// message or a row, and printing or logging a Ticket shows nothing of it. The package
// encoding/json writes the text ([Ticket.MarshalText]). The zero value is no ticket.
type Ticket struct{ t *ticket } // a pointer, so that printing a struct with a Ticket shows no secret

// ticket points to the contents of a Ticket. The package fmt prints what a pointer in an unexported
// field points to if the verb is %s or %q: here the address of the contents.
type ticket struct{ *ticketParts }

// ticketParts is the contents of a Ticket.
type ticketParts struct {
	key     string
	permits int // 0: the lock is exclusive
	locker  [16]byte
	secret  [16]byte
	token   int64
	expires time.Time
	space   [8]byte // hash of the name of the store's locks
}

// newTicket makes the ticket of a lock, without a token.
func newTicket(key string, permits int, locker, space string, expires time.Time) *ticket {
	t := &ticket{&ticketParts{key: key, permits: permits, expires: expires, space: hashOfSpace(space)}}
	_, _ = hex.Decode(t.locker[:], []byte(locker)) // ident.New has made it
	rand.Read(t.secret[:])                         // never fails (crypto/rand, Go 1.24)
	return t
}

func hashOfSpace(space string) (h [8]byte) {
	sum := sha256.Sum256([]byte("interlock space\n" + space))
	return [8]byte(sum[:])
}

// owner is the name of the owner in the store. The secret cannot be found out from it.
func (t *ticket) owner() string {
	sum := sha256.Sum256(append([]byte("interlock ticket\n"), t.secret[:]...))
	return driver.TicketOwner(hex.EncodeToString(t.locker[:]), hex.EncodeToString(sum[:16]))
}

func (t *ticket) kind() driver.Kind {
	if t.permits > 0 {
		return driver.Permit
	}
	return driver.Exclusive
}

// Text returns the text of the ticket, of letters, digits, "-" and "_": at most 300 bytes. It is empty
// for the zero value. Treat it as a password that is good for one use.
func (t Ticket) Text() string {
	if t.t == nil {
		return ""
	}
	b := make([]byte, 0, ticketHead+len(t.t.key))
	b = binary.BigEndian.AppendUint16(b, uint16(t.t.permits)) //nolint:gosec // at most 1024
	b = append(append(b, t.t.locker[:]...), t.t.secret[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(t.t.token))               //nolint:gosec // a token is positive
	b = binary.BigEndian.AppendUint64(b, uint64(t.t.expires.UnixMilli())) //nolint:gosec // of now
	b = append(append(b, t.t.space[:]...), t.t.key...)
	return codec.Encode(ticketKind, b)
}

// ParseTicket reads the text of a ticket. Its error matches [ErrTicket] and names the fault of
// the text. It does not say whether the ticket can still be taken over.
func ParseTicket(text string) (Ticket, error) {
	body, err := codec.Decode(ticketKind, text)
	if err == nil && len(body) <= ticketHead {
		err = errTicketValue
	}
	if err != nil {
		return Ticket{}, fmt.Errorf("%w: %w", ErrTicket, err)
	}
	t := &ticket{&ticketParts{permits: int(binary.BigEndian.Uint16(body)), key: string(body[ticketHead:])}}
	body = body[2:]
	copy(t.locker[:], body)
	copy(t.secret[:], body[16:])
	token, ends := binary.BigEndian.Uint64(body[32:]), binary.BigEndian.Uint64(body[40:])
	copy(t.space[:], body[48:])
	const most = 1 << 53 // of the tokens in Redis; and a time in the far future
	if token == 0 || token > most || ends > most || t.permits > maxPermits || len(t.key) > maxTicketKey {
		return Ticket{}, fmt.Errorf("%w: %w", ErrTicket, errTicketValue)
	}
	t.token, t.expires = int64(token), time.UnixMilli(int64(ends)) //nolint:gosec // at most 1<<53
	return Ticket{t}, nil
}

// MarshalText implements [encoding.TextMarshaler]. It returns [Ticket.Text].
func (t Ticket) MarshalText() ([]byte, error) { return []byte(t.Text()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. An empty text makes the zero Ticket; for any
// other it is [ParseTicket].
func (t *Ticket) UnmarshalText(text []byte) (err error) {
	if len(text) == 0 {
		*t = Ticket{}
		return nil
	}
	*t, err = ParseTicket(string(text))
	return err
}

// IsZero reports whether it is no ticket.
func (t Ticket) IsZero() bool { return t.t == nil }

// Key returns the key of the lock; empty for the zero value.
func (t Ticket) Key() string {
	if t.t == nil {
		return ""
	}
	return t.t.key
}

// Token returns the fencing token of the ticket's owner: it is greater than the token of the lease
// that was handed over, and smaller than the token of the lease that goes on. It is 0 for the zero value.
func (t Ticket) Token() int64 {
	if t.t == nil {
		return 0
	}
	return t.t.token
}

// Expires returns until when the lock is kept, by the clock of the process that has made the ticket.
// The store counts the time itself.
func (t Ticket) Expires() time.Time {
	if t.t == nil {
		return time.Time{}
	}
	return t.t.expires
}

// String hides the ticket: its text has the hash of the key and the end alone.
func (t Ticket) String() string {
	if t.t == nil {
		return "no ticket"
	}
	return fmt.Sprintf("ticket for the lock %s until %s", Hashed(t.t.key).Hash(), t.t.expires.UTC().Format(time.RFC3339))
}

// GoString is String.
func (t Ticket) GoString() string { return t.String() }

// LogValue implements [slog.LogValuer]. It returns String.
func (t Ticket) LogValue() slog.Value { return slog.StringValue(t.String()) }

package adapter

import (
	"slices"
	"strings"
)

// Message is a [Request] that no router has matched: a message of a queue, a job, the
// call of a function. A consumer fills in the fields that it has. A rule then makes the
// same key of the metadata of a message as of the path or the header of a request:
//
//	{account} and {header.Account}    the metadata with the name account
//	{query.account}                   nothing: the message is refused
//	{ctx.user}                        what a core.ContextFunc finds
//
// The methods do not change the Message. It is safe for concurrent use as long as no
// caller changes its contents.
type Message struct {
	// Name stands in place of a route: the name of the consumer, or of the job.
	Name string
	// Metadata is the data that comes with the payload: the headers of the message.
	Metadata map[string]string
	// Payload is the body.
	Payload []byte
	// Source is what Native returns: the message as the consumer got it.
	Source any
	// Lookup finds what Value returns, most often the method Value of the message's
	// context. Nil finds nothing.
	Lookup func(key any) any
}

var _ Request = (*Message)(nil)

// Route returns the Name, and true: every message counts as matched.
func (m *Message) Route() (string, bool) { return m.Name, true }

// Param returns the metadata with exactly this name. It is empty if there is none: the
// message is to blame, and a guard refuses it.
func (m *Message) Param(name string) (string, error) { return m.Metadata[name], nil }

// Header returns the metadata with this name. Upper and lower case are the same, so
// there can be two values, which are sorted.
func (m *Message) Header(name string) (values []string) {
	for key, value := range m.Metadata {
		if strings.EqualFold(key, name) {
			values = append(values, value)
		}
	}
	slices.Sort(values) // not in the order of the map, which is another one each time
	return values
}

// Query returns nothing.
func (m *Message) Query(string) []string { return nil }

// Body returns the Payload, or [ErrBodyLimit].
func (m *Message) Body(limit int64) ([]byte, error) {
	if int64(len(m.Payload)) > limit {
		return nil, ErrBodyLimit
	}
	return m.Payload, nil
}

// Value returns what Lookup finds.
func (m *Message) Value(key any) any {
	if m.Lookup == nil {
		return nil
	}
	return m.Lookup(key)
}

// Native returns the Source.
func (m *Message) Native() any { return m.Source }

package idempotency

import (
	"errors"
	"fmt"
	"time"

	"github.com/interlock-go/interlock/core/idempotency/endpoint"
	"github.com/interlock-go/interlock/core/internal/logs"
)

// Seal encrypts responses before they leave for the store, and decrypts them for a
// replay. Without it the store has status, header and body of each response in
// plain text for the [Retention]. Every reader of the store's data, its backups and
// its replicas can read them. Keys and principals are stored as hashes in any case,
// and of a request only its fingerprint (SHA-256).
//
// The function seal takes the bytes of a response, which it may not change, and
// returns the bytes to store. The function open is its inverse. Both run on the
// goroutine of a request and must be safe for concurrent use. Use an AEAD with a random
// nonce (crypto/cipher, NewGCMWithRandomNonce). To rotate a key, use an open that also
// knows the old key for one retention.
//
// If seal fails or panics, the response is sent and not stored: a duplicate is
// refused ([reason.ResponseUnavailable]), as for a response over [MaxResponse].
// If open fails or panics, the duplicate is refused as for a damaged record
// ([reason.NoRecord]). Both are logged through [slog.Default] at most once a
// minute.
//
// Responses that were stored before the option was set are replayed as they are,
// until their retention has ended. The option hides responses from readers of the
// store. It does not protect against a party that can write to the store. An engine
// without the option refuses sealed responses ([reason.NoRecord]), so a process
// that is not yet replaced refuses what its successors have stored. Default: none.
func Seal(seal, open func([]byte) ([]byte, error)) Option {
	return func(c *config) {
		if seal == nil || open == nil {
			c.fail("Seal: neither function may be nil")
			return
		}
		c.sealing = &sealing{seal: seal, open: open}
	}
}

// sealedVersion is the first byte of a sealed envelope; what follows is from seal.
const sealedVersion = 'S'

var (
	errSeal   = errors.New("interlock: the response could not be sealed")
	errSealed = damaged("the response is sealed, and the engine has no Seal")
)

type sealing struct {
	seal, open func([]byte) ([]byte, error)
	log        logs.Log
	failing    logs.Throttle // of seal; a failure of open is a refusal
}

// seal seals an envelope, if there is one and the engine seals. It returns nil if
// that fails: an envelope is never stored in plain text then.
func (c *config) seal(envelope []byte) []byte {
	s := c.sealing
	if s == nil || envelope == nil {
		return envelope
	}
	sealed, err := call(s.seal, envelope)
	if err != nil {
		if n := s.failing.Count(time.Now()); n > 0 { // the claim is not yet decided: no wait for the log
			s.log.Error("interlock: a response could not be sealed and is not stored", "rule", c.name, "requests", n, "error", err)
		}
		return nil
	}
	return append(append(make([]byte, 0, 1+len(sealed)), sealedVersion), sealed...)
}

// open reads a stored envelope, sealed or not.
func (c *config) open(protocol, envelope string) (*endpoint.Response, error) {
	if envelope == "" || envelope[0] != sealedVersion {
		return decode(protocol, envelope)
	}
	s := c.sealing
	if s == nil {
		return nil, errSealed
	}
	opened, err := call(s.open, []byte(envelope[1:]))
	if err != nil {
		return nil, damaged("opening the response: %w", err)
	}
	return decode(protocol, string(opened))
}

// The first byte of the payload of a step: sealed, or as it is.
const plainStep, sealedStep = 'p', 's'

// sealStep seals the outcome of a step.
func (c *config) sealStep(plain []byte) (payload []byte, err error) {
	if c.sealing == nil {
		return append([]byte{plainStep}, plain...), nil
	}
	sealed, err := call(c.sealing.seal, plain)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errSeal, err)
	}
	return append([]byte{sealedStep}, sealed...), nil
}

// openStep reads the outcome of a step, sealed or not. The result is the caller's.
func (c *config) openStep(payload string) ([]byte, error) {
	switch {
	case payload == "":
		return nil, damaged("the outcome of a step is empty")
	case payload[0] == plainStep:
		return []byte(payload[1:]), nil
	case payload[0] != sealedStep:
		return nil, damaged("version %d of the outcome of a step", payload[0])
	case c.sealing == nil:
		return nil, errSealed
	}
	opened, err := call(c.sealing.open, []byte(payload[1:]))
	if err != nil {
		return nil, damaged("opening the outcome of a step: %w", err)
	}
	return opened, nil
}

// call calls a function of the application. A panic of the function must not keep a
// claim.
func call(f func([]byte) ([]byte, error), b []byte) (out []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			out, err = nil, fmt.Errorf("interlock: panic: %v", p)
		}
	}()
	return f(b)
}

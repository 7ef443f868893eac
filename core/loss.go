package core

import "github.com/interlock-go/interlock/core/observe"

// Loss describes a lost lease: the lock, the holder, the time and the reason. It
// can be logged as it is. Printed, logged by log/slog or marshaled, it shows no key
// and no principal, only their hashes. Its fields and methods are described at
// [observe.Loss], the reasons at [observe.LossReason].
type Loss = observe.Loss

// Hashed is a text that identifies a user: a key, a principal. Printed, logged by
// log/slog or marshaled, it shows its hash. string(h) is the text itself.
// core.Hashed("account/42").Hash() is the hash by which logs and traces name the
// lock account/42. Its methods are described at [observe.Hashed].
type Hashed = observe.Hashed

package observe

// RootCause returns the error that all others wrap. If an error wraps several, it
// follows the last. The errors of this module name the key in what wraps the root
// cause. Look for the key in the text of the root cause too: the message of a
// server may repeat it. RootCause returns nil for nil.
func RootCause(err error) error {
	for {
		var inner error
		switch e := err.(type) { //nolint:errorlint // this walks the tree itself
		case interface{ Unwrap() error }:
			inner = e.Unwrap()
		case interface{ Unwrap() []error }:
			if all := e.Unwrap(); len(all) > 0 {
				inner = all[len(all)-1]
			}
		}
		if inner == nil {
			return err
		}
		err = inner
	}
}

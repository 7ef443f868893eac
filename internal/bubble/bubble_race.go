//go:build race && !go1.27

package bubble

import "runtime"

func init() { runtime.GOMAXPROCS(1) }

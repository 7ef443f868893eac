package core

import "github.com/interlock-go/interlock/core/driver"

// Store is a backend that keeps locks. redisstore.New makes the one on Redis. Its
// methods are for the authors of stores; see [driver.Store].
type Store = driver.Store

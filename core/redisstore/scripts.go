package redisstore

import (
	_ "embed"

	"github.com/interlock-go/interlock/core/internal/rediswire"
)

//go:embed lua/idem_claim.lua
var claimSource string

//go:embed lua/idem_take.lua
var takeSource string

//go:embed lua/idem_extend.lua
var extendSource string

//go:embed lua/idem_mark.lua
var markSource string

//go:embed lua/idem_step.lua
var stepSource string

//go:embed lua/idem_commit.lua
var commitSource string

//go:embed lua/idem_abandon.lua
var abandonSource string

//go:embed lua/idem_resolve.lua
var resolveSource string

// The scripts of records; package rediswire has the scripts of locks.
//
// The replies of these scripts are words, none of which another script says:
// should replies ever get out of step, none can be taken for another's.
var (
	claimScript   = rediswire.NewScript(claimSource)
	takeScript    = rediswire.NewScript(takeSource)
	extendScript  = rediswire.NewScript(extendSource)
	markScript    = rediswire.NewScript(markSource)
	stepScript    = rediswire.NewScript(stepSource)
	commitScript  = rediswire.NewScript(commitSource)
	abandonScript = rediswire.NewScript(abandonSource)
	resolveScript = rediswire.NewScript(resolveSource) // rare: its source is sent along
)

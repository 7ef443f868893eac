package trust

import (
	_ "github.com/Shopify/toxiproxy/v2"
	_ "github.com/anishathalye/porcupine"
	_ "github.com/interlock-go/interlock/internal/redistest"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "go.uber.org/goleak"
	_ "modernc.org/sqlite"
)

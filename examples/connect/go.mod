module github.com/interlock-go/interlock/examples/connect

go 1.26.0

replace github.com/interlock-go/interlock => ../../

replace github.com/interlock-go/interlock/connectlock => ../../connectlock

require (
	connectrpc.com/connect/v2 v2.0.2
	github.com/interlock-go/interlock v0.0.0
	github.com/interlock-go/interlock/connectlock v0.0.0
	go.uber.org/goleak v1.3.0
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/redis/go-redis/v9 v9.23.0 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20261019180522-ce908d29299b // indirect
	google.golang.org/grpc v1.85.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

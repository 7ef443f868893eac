module github.com/interlock-go/interlock/connectlock

go 1.26.0

require (
	connectrpc.com/connect/v2 v2.0.0 // the API of version 2
	github.com/interlock-go/interlock v0.0.0
	go.uber.org/goleak v1.3.0 // as in the root
	google.golang.org/genproto/googleapis/rpc v0.0.0-20240318140521-94a12d6c2237 // as in the root
	google.golang.org/grpc v1.64.1 // as in the root
	google.golang.org/protobuf v1.36.11 // connect
)

require (
	github.com/stretchr/testify v1.11.1 // indirect
	golang.org/x/net v0.57.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.40.0 // indirect
)

replace github.com/interlock-go/interlock => ../

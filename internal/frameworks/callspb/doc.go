// Package callspb is the gRPC service that the tests of all adapters call.
package callspb

//go:generate protoc -I . --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative calls.proto

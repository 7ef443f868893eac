// Package bankpb is the service of the example, with the lock of its method
// declared in the proto.
package bankpb

//go:generate protoc -I . -I ../../../grpclock/lockpb --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative bank.proto

// Package testpb is the service that the tests of grpclock call.
package testpb

//go:generate protoc -I . -I ../../lockpb --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative test.proto

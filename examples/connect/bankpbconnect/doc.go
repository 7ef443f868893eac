// Package bankpbconnect is the service of examples/grpc, served by connect: the proto and its
// messages are in package bankpb.
package bankpbconnect

//go:generate protoc -I ../../grpc/bankpb -I ../../../grpclock/lockpb --connect-go_out=.. --connect-go_opt=paths=source_relative bank.proto

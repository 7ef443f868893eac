// Package paymentspb is the bank's gRPC service, with the locks of its methods
// declared in the proto.
//
// To generate it again, with protoc, with protoc-gen-go at the version of
// google.golang.org/protobuf in go.mod, and with protoc-gen-go-grpc v1.6.2:
// go generate ./examples/payments/paymentspb.
package paymentspb

//go:generate protoc -I . -I ../../../grpclock/lockpb --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative payments.proto

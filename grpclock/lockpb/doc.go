// Package lockpb is the method option (interlock.v1.serialize), generated from
// interlock/v1/serialize.proto. A proto imports it by that path, with this
// directory on protoc's include path; package grpclock reads it.
//
// To generate it again, with protoc and with protoc-gen-go at the version of
// google.golang.org/protobuf in go.mod: go generate ./grpclock/lockpb.
package lockpb

//go:generate protoc -I . --go_out=. --go_opt=module=github.com/interlock-go/interlock/grpclock/lockpb interlock/v1/serialize.proto

// Package lockpb holds the method option (interlock.v1.serialize), generated from
// interlock/v1/serialize.proto. A proto imports the option by that path, with this
// directory on protoc's include path. Package grpclock reads the option.
//
// To generate the code again, run go generate ./grpclock/lockpb. It needs protoc,
// and protoc-gen-go at the version of google.golang.org/protobuf in go.mod.
package lockpb

//go:generate protoc -I . --go_out=. --go_opt=module=github.com/interlock-go/interlock/grpclock/lockpb interlock/v1/serialize.proto

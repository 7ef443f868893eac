// Package grpcx has the parts of package grpclock below its interceptors: requests
// and streams as the guard sees them, the fields of a message by their paths, and
// the status of each refusal. It serves gRPC as httpx serves HTTP.
package grpcx

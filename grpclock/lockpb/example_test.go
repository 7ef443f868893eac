package lockpb_test

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/interlock-go/interlock/grpclock/lockpb"
)

// The option of a method, as a program reads it that checks the protos of a company.
func Example() {
	options := &descriptorpb.MethodOptions{} // of protoreflect.MethodDescriptor.Options
	proto.SetExtension(options, lockpb.E_Serialize, &lockpb.Serialize{Key: "account/{account_id}"})

	rule, _ := proto.GetExtension(options, lockpb.E_Serialize).(*lockpb.Serialize)
	fmt.Println(rule.GetKey(), rule.GetMode())
	// Output: account/{account_id} EXCLUSIVE
}

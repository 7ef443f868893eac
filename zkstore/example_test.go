package zkstore_test

import (
	"context"
	"log"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/zkstore"
)

// A locker on ZooKeeper, and the unsafe settings of this ensemble.
func Example() {
	conn, err := zkstore.Connect([]string{"zk-1:2181", "zk-2:2181", "zk-3:2181"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	err = conn.AddAuth("digest", []byte("bank:secret")) // unless the nodes are open to all
	if err != nil {
		log.Fatal(err)
	}
	store, err := zkstore.New(conn)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(context.Background())

	unsafe, err := store.Check(context.Background())
	if err != nil {
		log.Print(err)
	}
	for _, sentence := range unsafe {
		log.Print(sentence)
	}
}

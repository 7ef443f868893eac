package etcdstore_test

import (
	"context"
	"log"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-go/interlock/core"
	"github.com/interlock-go/interlock/etcdstore"
)

// A locker on etcd, and the unsafe settings of this etcd.
func Example() {
	client, err := etcdstore.Connect(clientv3.Config{
		Endpoints: []string{"etcd-1:2379", "etcd-2:2379", "etcd-3:2379"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	store, err := etcdstore.New(client)
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

// A transaction of the user is executed only while the lock is held.
func ExampleStore_Held() {
	client, err := etcdstore.Connect(clientv3.Config{Endpoints: []string{"etcd-1:2379", "etcd-2:2379", "etcd-3:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	store, err := etcdstore.New(client)
	if err != nil {
		log.Fatal(err)
	}
	locker, err := core.New(store)
	if err != nil {
		log.Fatal(err)
	}
	err = locker.Do(context.Background(), "account/42", func(ctx context.Context) error {
		lease := core.LeaseFromContext(ctx)
		held, err := store.Held(ctx, lease)
		if err != nil {
			return err
		}
		done, err := client.Txn(ctx).If(held...).Then(clientv3.OpPut("balance/42", "90")).Commit()
		if err == nil && !done.Succeeded {
			return core.ErrLost
		}
		return err
	})
	log.Print(err)
}

// Package etcdstore keeps locks on etcd 3.5 or newer. Over a failover no lock is lost: each
// grant is on a majority of the members before its caller has it, and neither a lease of
// etcd nor the clock of a member has a part in it.
//
//	client, err := etcdstore.Connect(clientv3.Config{
//		Endpoints: []string{"etcd-1:2379", "etcd-2:2379", "etcd-3:2379"},
//	})
//	store, err := etcdstore.New(client)
//	locker, err := core.New(store)
//
// docs/consensus.md has the promises, the protocol and the rights. [Store.Check] names unsafe
// settings.
//
// Requests of a process that come at the same time share a transaction of etcd, so that a
// busy process costs etcd a fraction of the writes to its log.
package etcdstore

// Package zkstore keeps locks on ZooKeeper 3.5 or newer. Over a failover no lock is lost:
// each grant is on a majority of the members before its caller has it, and neither an
// ephemeral node, nor a session, nor the clock of a member has a part in it. When the session
// ends, the client makes another one, and nothing else happens.
//
//	conn, err := zkstore.Connect([]string{"zk-1:2181", "zk-2:2181", "zk-3:2181"}, nil)
//	store, err := zkstore.New(conn)
//	locker, err := core.New(store)
//
// docs/consensus.md has the promises, the protocol and the rights. [Store.Check] names unsafe
// settings.
//
// An entry of package casstore is a node with data that begins with "+". A node stays when
// its entry is deleted, with the data "-", so that its versions grow; the store deletes
// such nodes later. Every transaction compares the version of one node, /{prefix}/.epoch,
// which changes whenever nodes are deleted: so a late transaction never meets a node that
// was created anew with a version that it has seen.
package zkstore

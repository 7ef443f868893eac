// Package natsstore keeps locks in a bucket of NATS JetStream 2.12 or newer. Over a failover no lock is lost: each
// grant is on a majority of the members before its caller has it, and neither an end of messages nor the clock of a
// member has a part in it.
//
//	nc, err := nats.Connect("nats://nats-1,nats://nats-2,nats://nats-3",
//		nats.MaxReconnects(-1), nats.PingInterval(2*time.Second))
//	js, err := jetstream.New(nc)
//	store, err := natsstore.New(js, "locks")
//	locker, err := core.New(store)
//
// [Create] makes the bucket, once. docs/consensus.md has the promises and the rights. [Store.Check] names unsafe
// settings. Authentication, TLS and reconnects are the connection's.
//
// # How a transaction is executed
//
// An entry is the last message of a subject. A transaction is an atomic batch, and its conditions are the sequences that
// the leader of the stream compares. The number of a transaction is the sequence of its last message, and each message
// says how many follow. A read begins with a message, a guard, unless it has written: a member answers as it is after
// that, or another member is asked. So a member that lags, or takes itself for the leader, answers to none alone.
//
// Requests of a process that come at the same time share a batch.
package natsstore

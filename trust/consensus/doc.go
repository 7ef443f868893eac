// Package consensus tests the stores on consensus systems on real servers, each with three
// members in separate processes, which are stopped, continued and killed. It is in a
// separate module so that no other module gets the dependencies of a server of etcd.
// INTERLOCK_ETCD names an etcd of another version to be tested instead.
package consensus

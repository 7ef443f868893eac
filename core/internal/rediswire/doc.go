// Package rediswire is the common part of the stores on Redis: core/redisstore, and the
// nodes of core/quorum.
//
// A [Store] keeps locks on a server, on servers behind Sentinel or on a Cluster. It has its
// own connections (client.go, dial.go, follow.go): one set for requests of callers, one for
// renewals, and one connection for subscriptions. Each set is a route to the servers
// (route.go, topology.go).
//
// Everything that is sent is a [Request]: one call of a script (script.go, request.go).
// The requests for locks are in locks.go, the requests of a quorum's node in node.go;
// core/redisstore makes the requests for records. A request finds its server by the route.
// If a pipeline to that server is free, the goroutine of the caller sends the request by it;
// else the request waits in the queue of that server for the next pipeline (pipelines.go). A
// pipeline has a connection (link.go), and sends requests of one kind in calls that the
// requests share (pipeline.go). The outcome of a try ends the request, or has the request
// sent again (Request.tried, errors.go). A round renews many leases (renew.go).
//
// A subscriber receives the announcements of releases (subscriber.go). It has a
// subscription, a connection that is read by a goroutine, to each server with a watched
// channel (subscription.go), and finds out whether the connection leads to where requests go
// (where.go).
package rediswire

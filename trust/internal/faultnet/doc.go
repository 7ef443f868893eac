// Package faultnet breaks the network between a client and a server: a Proxy
// (toxiproxy) from outside the process, in bytes and connections, and a Wire (a
// dialer) from inside, in chosen requests and replies.
package faultnet

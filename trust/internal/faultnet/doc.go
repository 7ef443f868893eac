// Package faultnet breaks the network between a client and a server: a Proxy
// (toxiproxy) from outside the process, and a Wire (a dialer) from inside.
package faultnet

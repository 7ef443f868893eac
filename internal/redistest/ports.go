package redistest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

func (s *Server) claimPorts() (err error) {
	if s.port, err = s.claimPort(); err == nil && s.cfg.cluster {
		s.bus, err = s.claimPort()
	}
	return err
}

// claimPort finds a free port below the systems' range for local ports of outgoing
// connections (32768 up on Linux). Inside that range a client that redials a
// stopped server can be given the server's own port, and Restart would find it
// taken.
//
// The port stays the server's also while the server is down, since a test of that
// would else meet the server of another test. So it is claimed with the UDP port of
// the same number, which each process can see, and which ends with ours.
func (s *Server) claimPort() (int, error) {
	const low, high = 15000, 32000
	var err error
	for range 100 {
		port := low + rand.IntN(high-low)
		var claim net.PacketConn
		if claim, err = net.ListenPacket("udp", address(port)); err != nil {
			continue
		}
		var l net.Listener
		if l, err = net.Listen("tcp", address(port)); err == nil {
			s.claims = append(s.claims, claim)
			return port, l.Close()
		}
		_ = claim.Close() // err says why
	}
	return 0, fmt.Errorf("no free port: %w", err)
}

// release gives the ports up.
func (s *Server) release() {
	for _, claim := range s.claims {
		_ = claim.Close() // nothing was sent
	}
	s.claims = nil
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

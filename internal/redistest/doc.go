// Package redistest starts real Redis servers for tests.
//
// Every server is a private process on a free loopback port, with persistence
// off and its files in a temporary directory, so that packages tested in
// parallel never meet. A single server answers in about 20 ms, a Cluster or a
// Sentinel set in two to three seconds: those times are Redis's own, see
// [Cluster] and [Sentinel].
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		t.Parallel()
//		srv, name := redistest.Common(t) // one server per test binary, a name per test
//		own := redistest.Start(t)        // a server this test may kill
//	}
//
// The program is redis-server or valkey-server, the first that is found on PATH;
// the environment variable INTERLOCK_REDIS_SERVER names another one. Without one
// the tests fail: a lock that was never tried against a server has not been
// tested, so nothing here skips. Running as root is fine, Redis needs no separate
// user. Redis 6.2 is enough for single servers, [Cluster] wants 7.
//
// Servers do not outlive the test: a cleanup kills them by process id, and on
// Linux the kernel does so when the test binary itself dies.
package redistest

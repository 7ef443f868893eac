// Package river tests riverlock on a real River: jobs on PostgreSQL, worked by processes that are
// killed at random.
package river

// Package checks tests the repository itself: which package may import which, that the
// documents show code that is compiled and name tests that exist, and how a release is
// made. It has tests only.
package checks

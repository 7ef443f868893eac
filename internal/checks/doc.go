// Package checks tests the repository itself: which package may import which, that the
// documents show code that is compiled and name tests that exist, that each public package
// has an example that runs, and how a release is made. It has tests only.
package checks

// Package checks tests the repository itself: which package may import which, that the
// documents show code that is compiled, name tests that exist and have links that lead
// somewhere, that each page says who it is for and is in the index, that each public package
// has an example that runs, and how a release is made. It has tests only.
package checks

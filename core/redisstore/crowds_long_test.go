//go:build integration && long

package redisstore_test

// crowds are the numbers of waiting processes.
var crowds = []int{4, 48, 256}

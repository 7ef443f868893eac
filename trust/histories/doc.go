// Package histories has processes take locks while they are stopped, killed and
// cut off, and their servers fail over, records all that they did, and judges it;
// see docs/evidence.md#checked-histories. All of it is in the tests, which run on Linux.
package histories

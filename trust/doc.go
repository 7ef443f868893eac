// Package trust proves the promises of the locks on real servers under faults: one test for
// each fault in faults/, recorded and judged histories in histories/, tokens that databases
// check in fencing/. It tests the stores in PostgreSQL in postgres/, the programs of
// examples/ on PostgreSQL in examples/, the dashboard and the alerts of docs/observability
// in observability/, the answers that docs/openapi.yaml describes in openapi/, the change
// from other libraries of locks in changeover/, the bridges of docs/frameworks.md in
// frameworks/, object mappers in mappers/, the page of `interlock ui` in a real browser
// in browser/, and jobs of River in river/. It is a separate module, so that no user depends on proxies, checkers,
// database drivers and other libraries.
package trust

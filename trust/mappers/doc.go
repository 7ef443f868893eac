// Package mappers compiles and runs the code of docs/frameworks.md that writes rows by
// GORM, sqlx, sqlc and ent in the transaction of an idempotent request.
package mappers

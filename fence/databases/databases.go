// Package databases tests package fence with PostgreSQL, MariaDB and SQLite. It is a module of its own, so that fence
// has no dependencies.
package databases

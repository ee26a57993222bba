package databases

// The figures of docs/fencing.md: go test -run '^$' -bench . .

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/fence"
)

// What a transaction that reads and writes a row costs, without and with a token that is admitted: the first time, and
// again by the same holder.
func BenchmarkTx(b *testing.B) {
	for _, d := range databases {
		if d.name == "MariaDB with snapshot isolation" || d.name == "SQLite with a rollback journal" {
			continue
		}
		b.Run(strings.ReplaceAll(d.name, " ", "-"), func(b *testing.B) {
			s := d.store(b, sql.LevelDefault)
			s.exec(b, "INSERT INTO numbers VALUES (1, 0)")
			work := func(tx *sql.Tx) error {
				value, err := s.look(b.Context(), tx, 1)
				require.NoError(b, err)
				_, err = tx.ExecContext(b.Context(), s.sql("UPDATE numbers SET value = ? WHERE id = ?"), value+1, 1)
				return err
			}
			b.Run("plain", func(b *testing.B) {
				for b.Loop() {
					tx, err := s.db.BeginTx(b.Context(), nil)
					require.NoError(b, err)
					require.NoError(b, work(tx))
					require.NoError(b, tx.Commit())
				}
			})
			token := int64(1)
			for name, step := range map[string]int64{"new-token": 1, "same-token": 0} {
				b.Run(name, func(b *testing.B) {
					for b.Loop() {
						token += step
						require.NoError(b, s.fences.Tx(b.Context(), s.db, nil, resource(1), token, work))
					}
				})
			}
		})
	}
}

// What a row takes in the database, with its index.
func BenchmarkRow(b *testing.B) {
	sizes := map[string]string{
		"PostgreSQL": "SELECT pg_total_relation_size('fences')",
		"MariaDB": "SELECT data_length + index_length FROM information_schema.tables WHERE table_schema = 'test' AND " +
			"table_name = 'fences'",
		"SQLite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
	}
	const rows = 50_000
	for _, d := range databases {
		size, ok := sizes[d.name]
		if !ok {
			continue
		}
		b.Run(d.name, func(b *testing.B) {
			s := d.store(b, sql.LevelDefault)
			var before, after int64
			require.NoError(b, s.db.QueryRow(s.sql(size)).Scan(&before))
			for b.Loop() {
				tx, err := s.db.Begin()
				require.NoError(b, err)
				for i := range rows {
					err := s.fences.Admit(b.Context(), tx, fmt.Sprint("orders:", 1_000_000+i), 1_795_000_000_000_000)
					require.NoError(b, err)
				}
				require.NoError(b, tx.Commit())
			}
			if s.dialect == fence.MySQL {
				s.exec(b, "ANALYZE TABLE fences")
			}
			require.NoError(b, s.db.QueryRow(s.sql(size)).Scan(&after))
			b.ReportMetric(float64(after-before)/rows, "B/row")
			b.ReportMetric(0, "ns/op")
		})
	}
}

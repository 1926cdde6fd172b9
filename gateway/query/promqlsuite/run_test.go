//go:build !race

package promqlsuite_test

import (
	"testing"

	"github.com/spillwaydb/spillway/gateway/query/promqlsuite"
	"github.com/spillwaydb/spillway/gateway/query/querytest"
)

func TestPromQL(t *testing.T) {
	promqlsuite.Run(t, func(tb testing.TB) promqlsuite.Backend {
		st := querytest.NewStore()
		return promqlsuite.Backend{
			Source: st,
			Insert: querytest.Inserter(st, promqlsuite.Table, 1),
			Close: func() error {
				if n := st.Unclosed(); n != 0 {
					tb.Errorf("%d series sets were left open", n)
				}
				return nil
			},
		}
	})
}

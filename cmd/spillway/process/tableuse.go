package process

import (
	"net/http"
	"strconv"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/gateway/ui"
)

// tableUse serves the use by the tables that the reader may read, largest first; ?limit= bounds them.
func (d *door) tableUse(w http.ResponseWriter, r *http.Request) {
	n := 0
	if v := r.URL.Query().Get("limit"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil || n < 1 {
			http.Error(w, "limit must be a positive number", http.StatusBadRequest)
			return
		}
	}
	who := access.From(r.Context())
	ui.Answer(w, r, d.limits.TopOf(n, func(table string) bool { return who.May(access.Read, table) }))
}

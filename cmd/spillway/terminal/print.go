package terminal

import (
	"encoding/json"
	"io"
	"text/tabwriter"
)

// Print writes v as indented JSON, or else the output of draw, in which tabs separate columns that Print aligns. Errors are those of w.
func Print(w io.Writer, asJSON bool, v any, draw func(w io.Writer)) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(v)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	draw(t)
	return t.Flush()
}

package master

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// Format writes steps for people, one aligned line each: kind, table, change and reason. Without steps it writes one line that
// says so.
func Format(steps []Step) string {
	if len(steps) == 0 {
		return "nothing to do\n"
	}
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, s := range steps {
		table := s.Table
		if table == "" {
			table = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Kind, table, s.What, s.Why)
	}
	_ = t.Flush() // a Builder accepts everything
	return b.String()
}

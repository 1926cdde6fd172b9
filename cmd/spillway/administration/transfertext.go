package administration

import (
	"fmt"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/gateway/ui"
)

// transferText describes a transfer in one line: source, target, progress, rate and the time left.
func transferText(x ui.Transfer) string {
	to := x.To
	if to == "" {
		var into []string
		for _, id := range x.Into {
			into = append(into, fmt.Sprintf("p%d", id))
		}
		to = strings.Join(into, " and ")
	}
	text := fmt.Sprintf("%s → %s: %s of %s", x.From, to, terminal.SizeText(int64(x.Done)), terminal.SizeText(int64(x.Total)))
	if x.Left == nil {
		return text + ", the rate is not known yet"
	}
	return fmt.Sprintf("%s, %s/s, %v left", text, terminal.SizeText(int64(x.BytesPerSecond)), x.Left.Round(time.Second))
}

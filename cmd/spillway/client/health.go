package client

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// StartingHeader is in the answers of a process that is starting, with the value "starting". Probes distinguish it by that from one that is stopping, or has a fenced store.
const StartingHeader = "X-Spillway-State"

// Health asks a process whether it serves, for scripts and containers.
type Health struct {
	URL    string        `name:"url" help:"Where the process listens, or its admin.listen." default:"http://127.0.0.1:8428" env:"SPILLWAY_URL"`
	Within time.Duration `name:"timeout" help:"How long the answer may take." default:"5s"`
	Starts bool          `name:"starting-ok" help:"A process that is starting counts as ready: for what ends a container that is not well for long, since recovery may take minutes."`
	Quiet  bool          `name:"quiet" short:"q" help:"Print nothing."`
	Client Flags         `embed:""`
}

// Run ends with 0 when the process is ready, with 1 when it runs and is not, or starts, and with 2 when there is no answer.
func (c *Health) Run() error {
	if c.Within <= 0 {
		return fault.Errorf(fault.Invalid, "--timeout must be positive")
	}
	rq, err := http.NewRequest(http.MethodGet, strings.TrimRight(c.URL, "/")+"/-/ready", nil)
	if err != nil {
		return NoURL(c.URL)
	}
	resp, err := c.Client.Send(rq, c.Within)
	if err != nil {
		if c.Quiet {
			return terminal.Broken
		}
		return terminal.Unseen(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // an answer that breaks off is no less an answer
	if !c.Quiet {
		fmt.Printf("%s: %s\n", resp.Status, cmp.Or(strings.TrimSpace(string(text)), "no text"))
	}
	switch {
	case c.Starts && resp.Header.Get(StartingHeader) == "starting":
	case resp.StatusCode/100 != 2:
		return terminal.Degraded
	}
	return nil
}

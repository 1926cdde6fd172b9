package topics

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/gateway/intake/kafka"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Command is the command kafka, which shows how far a process has read its topics.
type Command struct {
	Status statusCmd `cmd:"" help:"Show the lag of every partition that a running process reads."`
}

type statusCmd struct {
	URL    string `name:"url" help:"Where the process listens." default:"http://127.0.0.1:8428" env:"SPILLWAY_URL"`
	Output string `name:"output" short:"o" help:"table or json." enum:"table,json" default:"table"`

	Client client.Flags `embed:""`
}

// Run asks a running process and prints its answer.
func (k *statusCmd) Run() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	s, err := Fetch(ctx, k.Client, k.URL)
	if err != nil {
		return err
	}
	if k.Output == "json" {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(s)
	}
	return Print(os.Stdout, s)
}

// Fetch asks the process at a URL. Errors: Invalid, Unavailable, Corrupt, and those of the connection.
func Fetch(ctx context.Context, flags client.Flags, url string) (s kafka.Status, err error) {
	rq, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(url, "/")+kafka.StatusPath, nil)
	if err != nil {
		return s, client.NoURL(url)
	}
	resp, err := flags.Do(rq)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return s, client.Refused(url, resp)
	}
	var body struct{ Data kafka.Status }
	err = json.NewDecoder(io.LimitReader(resp.Body, 64<<20)).Decode(&body)
	return body.Data, fault.Wrap(err, fault.Corrupt, "answer of %s", url)
}

// Print prints a table for people: one screen for a few topics, problems last.
func Print(w io.Writer, s kafka.Status) error {
	if len(s.Clusters) == 0 {
		_, err := fmt.Fprintln(w, "no Kafka cluster is configured")
		return err
	}
	for _, c := range s.Clusters {
		state := "in the group"
		if c.Member == "" {
			state = "not in the group"
		}
		fmt.Fprintf(w, "%s: group %s on %s, %s, lag %d, last commit %.1f s ago\n", c.Name, c.Group, strings.Join(c.Brokers, ","), state, c.Lag, c.CommitAge)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "topic\tpartition\tlag\tcommitted\tend\tin flight\trecords\trows\tpoison\tstate\t")
		for _, p := range c.Partitions {
			fmt.Fprintf(t, "%s\t%d\t%d\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t\n", p.Topic, p.Partition, p.Lag, offset(p.Committed), offset(p.End),
				kib(p.InFlightBytes), p.Records, p.Rows, p.Poison, partitionState(p))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		for _, p := range c.Partitions {
			if p.LastPoison != "" {
				fmt.Fprintf(w, "put aside of %s/%d: %s\n", p.Topic, p.Partition, p.LastPoison)
			}
		}
		if c.LastError != "" {
			fmt.Fprintf(w, "last error, %s: %s\n", c.ErrorTime.Format(time.RFC3339), c.LastError)
		}
	}
	_, err := fmt.Fprintf(w, "in flight %s of %s\n", kib(s.InFlightBytes), kib(s.InFlightBytesMax))
	return err
}

func offset(o int64) string {
	if o < 0 {
		return "-"
	}
	return fmt.Sprint(o)
}

func kib(n int64) string { return fmt.Sprintf("%d KiB", (n+1023)/1024) }

func partitionState(p kafka.PartitionStatus) string {
	switch {
	case p.Attempts > 0:
		return fmt.Sprintf("retry %d", p.Attempts)
	case p.Paused:
		return "paused"
	}
	return "ok"
}

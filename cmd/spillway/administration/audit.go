package administration

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// AuditPrefix begins the rows that record the actions of people: audit/<time>-<random>.
const AuditPrefix = "audit/"

// auditMax bounds the rows kept; the oldest go first.
const auditMax = 1000

// auditLine is one action of a person, done or attempted.
type auditLine struct {
	When    time.Time `json:"when"`
	Who     string    `json:"who"`
	What    string    `json:"what"`
	Reason  string    `json:"reason,omitempty"`
	Outcome string    `json:"outcome"` // begun, done, or the error
}

const auditVersion = 1

func (l auditLine) encode() []byte {
	b, err := json.Marshal(struct {
		V int `json:"v"`
		auditLine
	}{auditVersion, l})
	if err != nil {
		fault.Bug("an audit line does not encode: %v", err)
	}
	return b
}

func decodeAudit(row coord.Row) (auditLine, error) {
	var s struct {
		V int `json:"v"`
		auditLine
	}
	if err := json.Unmarshal(row.Value, &s); err != nil {
		return auditLine{}, fault.Wrap(err, fault.Corrupt, "row %s", row.Key)
	}
	if s.V != auditVersion {
		return auditLine{}, fault.Errorf(fault.Corrupt, "row %s is of version %d; this build reads version %d", row.Key, s.V, auditVersion)
	}
	return s.auditLine, nil
}

// reasonMax bounds a reason, and a name, in bytes. Rows of servers and leases hold them, and a row that is too long is not read: its server counts as not there, and its
// partition is led by none.
const reasonMax = 500

// act does something that changes the cluster. It writes a row before, so that nothing is done without a trace, and
// records the outcome there afterwards.
func (a *admin) act(ctx context.Context, reason, what string, do func() error) error {
	if n := max(len(reason), len(a.by)); n > reasonMax {
		return fault.Errorf(fault.TooLarge, "a reason or name of %d bytes, at most %d are kept: name a ticket instead", n, reasonMax)
	}
	line := auditLine{When: time.Now().UTC(), Who: a.by, What: what, Reason: reason, Outcome: "begun"}
	key := fmt.Sprintf("%s%s-%08x", AuditPrefix, line.When.Format("20060102T150405.000000000Z"), a.rng.Uint32())
	if _, _, err := a.store.Commit(ctx, nil, []coord.Write{{Key: key, Value: line.encode()}}); err != nil {
		return fault.Annotate(err, "nothing was done, because it could not be noted")
	}
	err := do()
	line.Outcome = "done"
	if err != nil {
		line.Outcome = err.Error()
	}
	noting, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, _, noted := a.store.Commit(noting, nil, []coord.Write{{Key: key, Value: line.encode()}}); noted != nil {
		a.log.Warn("the outcome could not be noted", "audit", key, "outcome", line.Outcome, "error", noted)
	}
	a.log.Info("admin", "who", line.Who, "what", line.What, "reason", line.Reason, "outcome", line.Outcome)
	if trimmed := a.trimAudit(noting); trimmed != nil {
		a.log.Warn("old audit rows stay", "error", trimmed)
	}
	return err
}

// confirm asks a person at a terminal to accept the loss; elsewhere it requires --yes. Errors are Invalid: nothing is done.
func (a *admin) confirm(yes bool, loses string) error {
	if yes {
		return nil
	}
	if a.unasked || !atTerminal() {
		return fault.Errorf(fault.Invalid, "%s\nNothing was done. If this is meant, add --yes", loses)
	}
	fmt.Fprintf(os.Stderr, "%s\nType yes to go on: ", loses)
	if answer, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil || strings.TrimSpace(answer) != "yes" {
		return fault.Errorf(fault.Invalid, "nothing was done")
	}
	return nil
}

// atTerminal reports whether a person can answer.
func atTerminal() bool {
	in, err := os.Stdin.Stat()
	null, nerr := os.Stat(os.DevNull)
	return err == nil && in.Mode()&os.ModeCharDevice != 0 && (nerr != nil || !os.SameFile(in, null))
}

// trimAudit deletes the oldest rows beyond auditMax.
func (a *admin) trimAudit(ctx context.Context) error {
	rows, _, err := a.store.List(ctx, AuditPrefix)
	for i := 0; err == nil && i < len(rows)-auditMax; i++ {
		_, _, err = a.store.Commit(ctx, nil, []coord.Write{{Key: rows[i].Key, Delete: true}})
	}
	return err
}

// Audit lists what administrators did.
type Audit struct {
	TableFlags `embed:""`
	Limit      int    `name:"limit" help:"How many, the newest." default:"50"`
	Match      string `name:"match" help:"Only lines that contain this."`
}

// Run lists the recorded actions.
func (c *Audit) Run() error {
	if !c.alone() {
		return c.with(c.run)
	}
	return c.show(AuditPath, url.Values{"limit": {strconv.Itoa(c.Limit)}, "match": {c.Match}})
}

func (c *Audit) run(ctx context.Context, a *admin) error {
	if c.Limit < 0 {
		return fault.Errorf(fault.Invalid, "a limit of %d lines; nothing may be negative", c.Limit)
	}
	rows, _, err := a.store.List(ctx, AuditPrefix)
	if err != nil {
		return err
	}
	lines := []auditLine{}
	for _, row := range rows {
		l, err := decodeAudit(row)
		if err != nil {
			a.log.Warn("left out", "error", err)
			continue
		}
		if strings.Contains(l.Who+" "+l.What+" "+l.Reason, c.Match) {
			lines = append(lines, l)
		}
	}
	lines = lines[max(len(lines)-c.Limit, 0):]
	return a.print(lines, func(w io.Writer) {
		fmt.Fprintln(w, "WHEN\tWHO\tWHAT\tREASON\tOUTCOME")
		for _, l := range lines {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", l.When.Format(time.RFC3339), l.Who, l.What, cmp.Or(l.Reason, "-"), l.Outcome)
		}
	})
}

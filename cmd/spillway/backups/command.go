package backups

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/setting"
	"github.com/spillwaydb/spillway/storage/backup"
	"github.com/spillwaydb/spillway/storage/backup/s3"
	"github.com/spillwaydb/spillway/storage/brick"
)

// Path is the path on admin.listen at which a running process accepts a request for a backup.
const Path = "/api/v1/admin/backup"

// Order is the body of such a request, in JSON.
type Order struct {
	To             string       `json:"to"`           // a directory of the process' host, or s3://bucket/prefix
	S3             *s3.Settings `json:"s3,omitempty"` // how the bucket is reached; missing values come from the environment of the process
	Link           bool         `json:"link,omitempty"`
	BytesPerSecond int          `json:"bytes_per_second,omitempty"`
	Keep           int          `json:"keep,omitempty"` // how many backups stay there; 0: all
}

// RestorePath is the path on admin.listen at which a running process accepts a request to insert the rows of a cluster's backup.
const RestorePath = "/api/v1/admin/restore"

// RestoreOrder is the body of a request to insert a backup's rows, in JSON.
type RestoreOrder struct {
	From           string       `json:"from"`         // a directory of the process' host, or s3://bucket/prefix
	S3             *s3.Settings `json:"s3,omitempty"` // how the bucket is reached; missing values come from the environment of the process
	Backup         string       `json:"backup,omitempty"`
	BytesPerSecond int          `json:"bytes_per_second,omitempty"`
	Merge          bool         `json:"merge,omitempty"`
}

// News is a line of the answer: the progress, and at last the outcome.
type News struct {
	Progress *backup.Progress `json:"progress,omitempty"`
	Name     string           `json:"name,omitempty"`
	Missing  []string         `json:"missing,omitempty"`
	Removed  []string         `json:"removed,omitempty"`
	Tables   int              `json:"tables,omitempty"`  // of a restore
	Rows     int64            `json:"rows,omitempty"`    // of a restore
	Expired  int64            `json:"expired,omitempty"` // of a restore: rows left out, older than their table keeps
	Error    string           `json:"error,omitempty"`
}

// Place is where the backup goes. Errors: Invalid.
func (o *Order) Place() (backup.Place, error) {
	if isBucket(o.To) && o.Link {
		return nil, fault.Errorf(fault.Invalid, "a bucket takes no hard links")
	}
	return PlaceAt("to", o.To, o.S3)
}

// PlaceAt is the place that a field of an order names. Errors: Invalid.
func PlaceAt(field, at string, set *s3.Settings) (backup.Place, error) {
	switch {
	case isBucket(at):
		if set == nil {
			set = &s3.Settings{}
		}
		return s3.Open(at, *set)
	case !filepath.IsAbs(at):
		return nil, fault.Errorf(fault.Invalid, "%s must be an absolute path or s3://BUCKET/PREFIX", field)
	}
	return backup.Dir{FS: vfs.Default, Path: at}, nil
}

// Backup asks a running process for a backup.
type Backup struct {
	To   string        `name:"to" help:"Directory for it, on the host of the process, or s3://BUCKET/PREFIX. Backups in one place share what they have in common." required:"" placeholder:"DIR|s3://…"`
	URL  string        `name:"url" help:"Where the process listens for administrators (its admin.listen)." default:"http://127.0.0.1:8429" env:"SPILLWAY_ADMIN_URL"`
	Link bool          `name:"link" help:"Make hard links instead of copies: at once, on the same disk, and damaged together with it."`
	Rate setting.Bytes `name:"rate" help:"Bytes a second to copy at most, as 50MiB (default: as fast as can be)."`
	Keep int           `name:"keep" help:"Remove all but the newest backups of the directory afterwards (default: keep all)."`

	S3     Bucket       `embed:"" prefix:"s3-" group:"S3"`
	Client client.Flags `embed:""`
}

// Run orders the backup and shows its progress.
func (c *Backup) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if c.Keep < 0 {
		return fault.Errorf(fault.Invalid, "--keep must not be negative")
	}
	o, err := c.order()
	if err != nil {
		return err
	}
	news, err := sendOrder(ctx, c.Client, c.URL, Path, o, terminal.NewBar(os.Stderr, "backup"))
	if err != nil {
		return err
	}
	fmt.Printf("backup %s in %s: %d segments, %s, of which %s were copied\n", news.Name, o.To, news.Progress.Segments, terminal.SizeText(news.Progress.Bytes), terminal.SizeText(news.Progress.Copied))
	if c.Link && news.Progress.Copied > 0 {
		fmt.Println("hard links could not be made for what was copied: they need one file system and one mount")
	}
	for _, name := range news.Removed {
		fmt.Printf("removed %s\n", name)
	}
	return tellMissing(news.Missing)
}

// order is the request for the process. Errors: Invalid.
func (c *Backup) order() (*Order, error) {
	to, set, err := c.S3.ordered(c.To, c.URL)
	return &Order{To: to, S3: set, Link: c.Link, BytesPerSecond: int(c.Rate), Keep: c.Keep}, err
}

// sendOrder sends an order to the process at a URL, and shows the progress in the answer.
func sendOrder(ctx context.Context, by client.Flags, at, path string, o any, bar *terminal.Bar) (news News, err error) {
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = fault.Errorf(fault.Canceled, "interrupted: the %s ends with this command", bar.What)
		}
	}()
	order, err := json.Marshal(o)
	if err != nil {
		return news, err
	}
	rq, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(at, "/")+path, bytes.NewReader(order))
	if err != nil {
		return news, client.NoURL(at)
	}
	rq.Header.Set("Content-Type", "application/json")
	received, stop := awaitNews(os.Stderr, at)
	defer stop()
	resp, err := by.Send(rq, 0)
	if err != nil {
		return news, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		why, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return news, fault.Errorf(fault.Unavailable, "%s answered %s: %s", at, resp.Status, strings.TrimSpace(string(why)))
	}
	return readNews(resp.Body, bar, received)
}

// newsWithin is how long an order may be without news before a line says so: a partition without a leader is waited for so long.
const newsWithin = 90 * time.Second

// awaitNews writes a line to w each time that nothing came from the process for a while: a process that is frozen, or waits for its disk, keeps its connection open.
func awaitNews(w io.Writer, at string) (received, stop func()) {
	began := time.Now()
	var mu sync.Mutex
	var t *time.Timer
	mu.Lock()
	defer mu.Unlock()
	t = time.AfterFunc(newsWithin, func() {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(w, "\nno news of %s for %v: it, or a server that it waits for, may be stopped, or a disk may hang. It is waited for; Ctrl-C gives the order up\n", at, time.Since(began).Round(time.Second))
		t.Reset(newsWithin)
	})
	received = func() {
		mu.Lock()
		defer mu.Unlock()
		began = time.Now()
		t.Reset(newsWithin)
	}
	return received, func() {
		mu.Lock()
		defer mu.Unlock()
		t.Stop()
	}
}

// readNews reads the lines of the answer up to the last one.
func readNews(r io.Reader, bar *terminal.Bar, received func()) (news News, err error) {
	d := json.NewDecoder(r)
	for {
		var line News
		if err := d.Decode(&line); err != nil {
			bar.End()
			return news, fault.Errorf(fault.Unavailable, "the process went away before the %s was done (%v)", bar.What, err)
		}
		received()
		switch {
		case line.Error != "":
			bar.End()
			return line, errors.New(line.Error)
		case line.Name != "":
			shower(bar)(*line.Progress)
			bar.End()
			return line, nil
		case line.Progress != nil:
			shower(bar)(*line.Progress)
		}
	}
}

// shower shows the progress of a backup or a restore.
func shower(b *terminal.Bar) func(backup.Progress) {
	return func(p backup.Progress) {
		part := 1.0
		if p.BytesAll > 0 {
			part = float64(p.Bytes) / float64(p.BytesAll)
		}
		b.Draw(part, p.Segments == p.SegmentsAll, func(seconds float64) string {
			return fmt.Sprintf("%s of %s  %s/s", terminal.SizeText(p.Bytes), terminal.SizeText(p.BytesAll), terminal.SizeText(int64(float64(p.Bytes)/seconds)))
		})
	}
}

// tellMissing ends with 1 when something is missing.
func tellMissing(missing []string) error {
	for _, m := range missing {
		fmt.Printf("missing: %s\n", m)
	}
	if len(missing) > 0 {
		return terminal.Degraded
	}
	return nil
}

// Restore makes a store of a backup, or has a running cluster insert its rows.
type Restore struct {
	From       string        `name:"from" help:"Directory with backups, or s3://BUCKET/PREFIX." required:"" placeholder:"DIR|s3://…"`
	Backup     string        `name:"backup" help:"Which of them, by name (default: the newest)."`
	ConfigFile string        `name:"config.file" help:"YAML file with settings, for data_dir and storage.log_dir." type:"path" env:"SPILLWAY_CONFIG_FILE"`
	DataDir    *string       `name:"data-dir" help:"Where the store is to be: an empty directory, or one that does not exist (default ./spillway-data)." type:"path"`
	Link       bool          `name:"link" help:"Make hard links instead of copies: the backup shares its files with the store then."`
	Rate       setting.Bytes `name:"rate" help:"Bytes a second to copy at most, as 50MiB (default: as fast as can be)."`
	URL        string        `name:"url" help:"Instead of making a store: where a gateway of another cluster, or a standalone process, listens for administrators. It takes the rows of a cluster's backup." placeholder:"URL" xor:"mode"`
	Merge      bool          `name:"merge" help:"With --url: add the rows to tables that have rows already; a restore that was interrupted goes on so."`
	List       bool          `name:"list" help:"List the backups, and restore nothing." xor:"mode"`
	Verify     bool          `name:"verify" help:"Read the whole backup and check it, and restore nothing." xor:"mode"`

	S3     Bucket       `embed:"" prefix:"s3-" group:"S3"`
	Client client.Flags `embed:""`
}

// Run lists, checks or restores.
func (c *Restore) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch {
	case c.URL != "" && (c.DataDir != nil || c.Link):
		return fault.Errorf(fault.Invalid, "--url has a running process take the rows; --data-dir and --link make a new store")
	case c.URL != "":
		return c.order(ctx)
	case c.Merge:
		return fault.Errorf(fault.Invalid, "--merge goes with --url: a new store has no rows yet")
	}
	from, err := c.S3.Place(c.From)
	if err != nil {
		return err
	}
	if c.List {
		return listBackups(ctx, os.Stdout, from)
	}
	set := backup.Settings{Link: c.Link, BytesPerSecond: int(c.Rate)}
	if c.Verify {
		bar := terminal.NewBar(os.Stderr, "verify")
		set.Progress = shower(bar)
		res, err := backup.Verify(ctx, from, c.Backup, set)
		bar.End()
		if err != nil {
			return err
		}
		fmt.Printf("backup %s: %d segments, %s were read\n", res.Name, res.Segments, terminal.SizeText(res.Bytes))
		return tellMissing(res.Missing)
	}
	cfg, err := settings.Load(c.ConfigFile)
	if err == nil {
		terminal.Over(&cfg.DataDir, c.DataDir)
		err = cfg.Complete()
	}
	if err != nil {
		return err
	}
	bar := terminal.NewBar(os.Stderr, "restore")
	set.Progress = shower(bar)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	res, err := backup.Restore(ctx, from, c.Backup, brick.Deps{FS: vfs.Default, Log: log}, cfg.ForBrick(), set)
	bar.End()
	if err != nil {
		return err
	}
	fmt.Printf("backup %s restored to %s: %d segments, %s\n", res.Name, cfg.DataDir, res.Segments, terminal.SizeText(res.Bytes))
	return tellMissing(res.Missing)
}

// order has a running process insert the rows of a backup.
func (c *Restore) order(ctx context.Context) error {
	from, set, err := c.S3.ordered(c.From, c.URL)
	if err != nil {
		return err
	}
	o := &RestoreOrder{From: from, S3: set, Backup: c.Backup, BytesPerSecond: int(c.Rate), Merge: c.Merge}
	news, err := sendOrder(ctx, c.Client, c.URL, RestorePath, o, terminal.NewBar(os.Stderr, "restore"))
	if err != nil {
		return err
	}
	fmt.Printf("backup %s restored to %s: %d tables, %d rows\n", news.Name, c.URL, news.Tables, news.Rows)
	if news.Expired > 0 {
		fmt.Printf("%d rows were left out: they are older than their tables keep\n", news.Expired)
	}
	return tellMissing(news.Missing)
}

// listBackups ends with 1 when one cannot be read.
func listBackups(ctx context.Context, w io.Writer, at backup.Place) error {
	all, err := backup.List(ctx, at)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "BACKUP\tMADE\tOF\tSEGMENTS\tSIZE\tSTATE")
	var end error
	for _, l := range all {
		if l.Err != nil {
			end = terminal.Degraded
			fmt.Fprintf(t, "%s\t\t\t\t\t%v\n", l.Name, l.Err)
			continue
		}
		state := "whole"
		if n := len(l.Missing); n > 0 {
			state = fmt.Sprintf("%d things are missing", n)
		}
		of := "a store"
		if l.Cluster {
			of = fmt.Sprintf("a cluster, %d tables", l.Tables)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", l.Name, l.Made.Local().Format(time.RFC3339), of, l.Segments, terminal.SizeText(l.Bytes), state)
	}
	return cmp.Or(t.Flush(), end)
}

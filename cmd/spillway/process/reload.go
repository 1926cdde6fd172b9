package process

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// reloader reads the settings of a running process again, at SIGHUP and for POST /-/reload: the configuration file and the
// files that it names.
type reloader struct {
	cfg *config
	log *slog.Logger
	// apply puts what may change into force. Its error is Invalid, and then nothing has changed.
	apply func(c *settings.Config) error
	// failed counts a reload that failed; nil: nothing does.
	failed func()
	of     *reloads
}

// reload applies all or nothing: a mistake anywhere leaves the settings in force unchanged. The error is Invalid.
func (r *reloader) reload() error {
	r.of.turn.Lock()
	defer r.of.turn.Unlock()
	c, err := r.readAgain()
	if err == nil {
		err = r.apply(c)
	}
	r.of.ended(err)
	if err != nil {
		if r.failed != nil {
			r.failed()
		}
		r.log.Error("settings could not be read anew; those in force stay", "file", r.cfg.File, "error", err)
		return err
	}
	if r.cfg.File == "" {
		return nil
	}
	for _, key := range changedForRestart(&r.cfg.Config, c) {
		r.log.Warn("a setting has changed that needs a restart", "key", key)
	}
	r.log.Info("settings are read anew", "file", r.cfg.File, "tables", len(c.Limits.Tables))
	r.cfg.Level.Set(c.Level.Level())
	return nil
}

// readAgain reads and checks the whole configuration, flags and variables with it.
func (r *reloader) readAgain() (*settings.Config, error) {
	if r.cfg.File == "" || r.cfg.Again == nil {
		return &r.cfg.Config, nil
	}
	c, err := r.cfg.Again()
	return &c, err
}

// catchHangups has SIGHUP, which would end the process, wait in the configuration until the process runs and reloads.
// A process may start for long: it opens a large log, or waits for the coordination store.
func (c *config) catchHangups() (stop func()) {
	c.hangups = make(chan os.Signal, 1)
	signal.Notify(c.hangups, syscall.SIGHUP)
	return func() { signal.Stop(c.hangups) }
}

// onHangup reloads at each SIGHUP.
func (r *reloader) onHangup(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.cfg.hangups:
			_ = r.reload() // logged and counted
		}
	}
}

// page reloads, and answers with the mistakes in the files if it cannot.
func (r *reloader) page(w http.ResponseWriter, _ *http.Request) {
	if err := r.reload(); err != nil {
		http.Error(w, "What was in force stays in force: "+err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = io.WriteString(w, "Reloaded.\n")
}

func (d *door) reloader() *reloader {
	return &reloader{cfg: d.cfg, log: d.log, apply: d.apply, failed: d.limits.ReloadFailed, of: &d.reloads}
}

// reloads are the outcomes of reloads. The zero value is those of a process that has had none.
type reloads struct {
	turn sync.Mutex // held from the reading of the files to the end: the settings read first must not come into force last

	mu     sync.Mutex
	failed bool      // the last
	at     time.Time // of the last that went well, or of the start
}

func (r *reloads) ended(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed = err != nil; !r.failed {
		r.at = time.Now()
	}
}

// begin makes the outcomes those of a process that has just read its settings, and registers them under the names that users of Prometheus know from it.
func (r *reloads) begin(to prometheus.Registerer) {
	r.mu.Lock()
	r.at = time.Now()
	r.mu.Unlock()
	to.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_config_last_reload_successful",
			Help: "1 while the settings in force are what the last reload read, 0 after one that failed: the next start would be refused."}, func() float64 {
			if well, _ := r.last(); !well {
				return 0
			}
			return 1
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "spillway_config_last_reload_success_timestamp_seconds",
			Help: "When the settings in force were read: at the last reload that went well, or at the start."}, func() float64 {
			_, at := r.last()
			return float64(at.UnixMilli()) / 1000
		}))
}

// last reports whether the last went well, and since when the settings in force are.
func (r *reloads) last() (well bool, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.failed, r.at
}

// apply puts users, tokens, limits, rules of labels and pairs of replicas into force.
func (d *door) apply(c *settings.Config) error {
	if err := d.guard.Reload(); err != nil || d.cfg.File == "" {
		return err
	}
	if err := d.limits.Reload(c.Limits); err != nil {
		return err
	}
	// These were checked with the rest of the file.
	return errors.Join(d.relabel.Reload(c.Relabel), d.replicas.Reload(c.HA))
}

// reloader puts the weights of tables into force, all that a storage server uses of the limits. Certificates and revocations of
// peers are read again by themselves.
func (p *storage) reloader() *reloader {
	return &reloader{cfg: p.cfg, log: p.log, of: &p.reloads, apply: func(c *settings.Config) error {
		now := c.Limits
		p.cfg.Weights.Store(&now)
		return nil
	}}
}

// changedForRestart returns the keys of settings that differ and that a running process does not reload.
func changedForRestart(old, now *settings.Config) (keys []string) {
	before := map[string]string{}
	for _, s := range setting.List(old) {
		before[s.Key] = s.Text()
	}
	for _, s := range setting.List(now) {
		if !s.Reload && before[s.Key] != s.Text() {
			keys = append(keys, s.Key)
		}
	}
	slices.Sort(keys)
	return keys
}

// inForce is the configuration of the start with all that reloads have changed since.
func (d *door) inForce() settings.Config {
	c := d.cfg.Config
	c.Limits, c.Relabel, c.HA = d.limits.Settings(), d.relabel.Settings(), d.replicas.Settings()
	c.LogLevel = strings.ToLower(c.Level.Level().String())
	return c
}

// settings is the configuration in force, as YAML.
func (d *door) settings() string {
	c := d.inForce()
	return c.String()
}

// flagValues are the settings in force that are single values, by flag: what Prometheus calls its flags. Their reader need not
// administer the process, so that a password in the coordination store's URL is left out.
func (d *door) flagValues() map[string]string {
	c := d.inForce()
	if u, err := url.Parse(c.Coord.URL); err == nil {
		c.Coord.URL = u.Redacted()
	} else {
		c.Coord.URL = ""
	}
	out := map[string]string{"config.file": c.File}
	for _, s := range setting.List(&c) {
		if s.Scalar() && s.Is(d.role) {
			out[s.Flag] = s.Text()
		}
	}
	return out
}

// exists reports whether there is a table of that name.
func (d *door) exists(table string) bool {
	_, ok := d.behind.tables.Get(table)
	return ok
}

package main

import (
	"errors"
	"net/url"
	"slices"

	"github.com/spillwaydb/spillway/protocols/setting"
)

// reload reads again the settings that may change under a running process: the configuration file and the files that it
// names. All or nothing is applied: a mistake anywhere leaves the settings in force unchanged. The error is Invalid.
func (d *door) reload() error {
	c, err := d.readAgain()
	if err == nil {
		err = d.guard.Reload()
	}
	if err == nil && d.cfg.file != "" {
		if err = d.limits.Reload(c.Limits); err == nil {
			// These were checked with the rest of the file.
			err = errors.Join(d.relabel.Reload(c.Relabel), d.replicas.Reload(c.HA))
		}
	}
	if err != nil {
		d.limits.ReloadFailed()
		d.log.Error("settings could not be read anew; those in force stay", "file", d.cfg.file, "error", err)
		return err
	}
	if d.cfg.file == "" {
		return nil
	}
	for _, key := range changedForRestart(d.cfg, c) {
		d.log.Warn("a setting has changed that needs a restart", "key", key)
	}
	d.log.Info("settings are read anew", "file", d.cfg.file, "tables", len(c.Limits.Tables))
	d.cfg.level.Set(c.level.Level())
	return nil
}

// readAgain reads and checks the whole configuration, flags and variables with it.
func (d *door) readAgain() (*config, error) {
	if d.cfg.file == "" || d.cfg.again == nil {
		return d.cfg, nil
	}
	c, err := d.cfg.again()
	return &c, err
}

// changedForRestart returns the keys of settings that differ and that a running process does not reload.
func changedForRestart(old, now *config) (keys []string) {
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

// settings is the configuration in force, as YAML.
func (d *door) settings() string {
	c := *d.cfg
	c.Limits, c.Relabel, c.HA = d.limits.Settings(), d.relabel.Settings(), d.replicas.Settings()
	return c.String()
}

// flagValues are the settings in force that are single values, by flag: what Prometheus calls its flags. Their reader need not
// administer the process, so that a password in the coordination store's URL is left out.
func (d *door) flagValues() map[string]string {
	c := *d.cfg
	c.Limits, c.Relabel, c.HA = d.limits.Settings(), d.relabel.Settings(), d.replicas.Settings()
	if u, err := url.Parse(c.Coord.URL); err == nil {
		c.Coord.URL = u.Redacted()
	} else {
		c.Coord.URL = ""
	}
	out := map[string]string{"config.file": c.file}
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

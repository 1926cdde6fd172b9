package main

import "github.com/spillwaydb/spillway/gateway/limits"

// reloadLimits puts the limits of the configuration file in force, with what the environment puts over them. A file with a
// mistake, wherever in it, changes nothing.
func (d *door) reloadLimits() error {
	if d.cfg.file == "" {
		return nil // there is nothing to read
	}
	s, err := d.readLimits()
	if err != nil {
		d.limits.ReloadFailed()
	} else {
		err = d.limits.Reload(s)
	}
	if err != nil {
		d.log.Error("limits could not be read anew; those in force stay", "file", d.cfg.file, "error", err)
		return err
	}
	d.log.Info("limits are read anew", "file", d.cfg.file, "tables", len(s.Tables))
	return nil
}

func (d *door) readLimits() (limits.Settings, error) {
	c, err := loadConfig(d.cfg.file)
	return c.Limits, err
}

// settings is the configuration in force, as YAML.
func (d *door) settings() string {
	c := *d.cfg
	c.Limits = d.limits.Settings()
	return c.String()
}

// exists says whether there is a table of that name.
func (d *door) exists(table string) bool {
	_, ok := d.behind.tables.Get(table)
	return ok
}

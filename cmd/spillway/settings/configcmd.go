package settings

import (
	"fmt"
	"io"
	"os"

	"github.com/spillwaydb/spillway/gateway/access"
	"github.com/spillwaydb/spillway/protocols/setting"
)

// Command looks at settings without running anything.
type Command struct {
	Check     configCheckCmd     `cmd:"" help:"Check a configuration file, with the variables of this environment, and the tokens and web-config files it names: every mistake, with its line or key."`
	Show      configShowCmd      `cmd:"" help:"Print the settings a process would have, those worked out from this machine among them."`
	Reference configReferenceCmd `cmd:"" help:"Print every setting with its values, default and price, in Markdown."`
}

// configSource is the source of settings.
type configSource struct {
	File string `arg:"" optional:"" help:"YAML file with settings; without it: defaults and variables." type:"path"`
}

func (s *configSource) config() (Config, error) {
	c, err := Load(s.File)
	if err != nil {
		return c, err
	}
	return c, c.Complete()
}

type configCheckCmd struct {
	configSource `embed:""`
}

// Run reports every mistake of a configuration, and of its tokens file and web-config file.
func (c *configCheckCmd) Run() error {
	cfg, err := c.config()
	if err != nil {
		return err
	}
	if err := access.Check(access.Settings{WebFile: cfg.HTTP.WebConfigFile, TokensFile: cfg.HTTP.TokensFile}); err != nil {
		return err
	}
	fmt.Println("the settings are good")
	return nil
}

type configShowCmd struct {
	configSource `embed:""`
}

// Run prints the configuration in force.
func (c *configShowCmd) Run() error {
	cfg, err := c.config()
	if err != nil {
		return err
	}
	fmt.Print(cfg.String())
	return nil
}

type configReferenceCmd struct{}

// Run prints docs/configuration.md.
func (configReferenceCmd) Run() error { return writeReference(os.Stdout) }

const referenceIntro = "# Settings\n\n" +
	"`spillway config reference` prints this page, `spillway config check FILE` names every mistake in a file and in the tokens and\n" +
	"web-config files it names, `spillway config show FILE` prints what a process would run with.\n\n" +
	"A setting is given in three ways, the later over the earlier: a YAML file (`--config.file`), a variable, a flag.\n\n" +
	"```yaml\n" +
	"storage:                                    # in the file\n" +
	"  flush_age: 30m\n" +
	"```\n\n" +
	"```sh\n" +
	"SPILLWAY_STORAGE_FLUSH_AGE=30m spillway standalone   # the key in capitals, dots and all as underscores\n" +
	"spillway standalone --storage.flush-age=30m          # the key with dashes, unless the table names another\n" +
	"```\n\n" +
	"Unknown keys, variables and flags are errors. Sizes are bytes or have a unit (`64KiB`, `10MB`, `4GiB`), time spans are those of Prometheus\n(`30s`, `10m`, `1d`), " +
	"lists are apart by commas in variables and flags. A number, size or time of 0 is the default where the table names one\nand does not say what 0 does.\n" +
	"`kill -HUP` and `POST /-/reload` on the admin address read again what the tables below say is read again; the rest needs a\n" +
	"restart. What a setting costs is in *italics*.\n\n"

var referenceChapters = map[string]string{
	"relabel": "Series rewritten or dropped as they come, by every protocol.",
	"ha":      "HA pairs: of several senders of the same series the rows of one are kept. [limits.md](limits.md#ha-pairs)\nsays how.",
	"limits":  "Limits of each table; 0 is none. [limits.md](limits.md) says what is answered beyond them.",
	"kafka":   "A list of clusters, each read by one consumer group.",
	"storage": "The store. Bounds that are not set follow from `storage.memory_bytes`.",
	"peer":    "Calls between the processes of a cluster.",
	"coord":   "The coordination store of a cluster.",
	"api":     "The HTTP API of Prometheus.",
	"query":   "PromQL.",
	"traces":  "What single requests do, step by step, for OpenTelemetry: a span of each write and query at the gateway, and one of each call to a\nstorage server, which sends one of its own for all calls but inserts. Off without an endpoint.",
	"self":    "The metrics of the process, written into the table `_spillway`: [metrics.md](metrics.md).",
	"tables":  "Tables that writes make. `spillway table set` changes one that exists.",
}

func writeReference(w io.Writer) error {
	if _, err := io.WriteString(w, referenceIntro); err != nil {
		return err
	}
	c := Default()
	return setting.Reference(w, setting.List(&c), referenceChapters)
}

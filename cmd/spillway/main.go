package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/spillwaydb/spillway/cmd/spillway/administration"
	"github.com/spillwaydb/spillway/cmd/spillway/backups"
	"github.com/spillwaydb/spillway/cmd/spillway/client"
	"github.com/spillwaydb/spillway/cmd/spillway/completion"
	"github.com/spillwaydb/spillway/cmd/spillway/credentials"
	"github.com/spillwaydb/spillway/cmd/spillway/exchange"
	"github.com/spillwaydb/spillway/cmd/spillway/process"
	"github.com/spillwaydb/spillway/cmd/spillway/repair"
	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/cmd/spillway/topics"
	"github.com/spillwaydb/spillway/cmd/spillway/verify"
	"github.com/spillwaydb/spillway/gateway/api"
)

// version is set by the linker in releases.
var version = "dev"

type cli struct {
	Standalone process.Standalone       `cmd:"" help:"Run everything in one process: no other server, no configuration needed."`
	Gateway    process.Gateway          `cmd:"" help:"Run a gateway of a cluster: accepts writes and queries, keeps nothing."`
	Storage    process.Storage          `cmd:"" help:"Run a storage server of a cluster."`
	Query      client.Query             `cmd:"" help:"Evaluate an expression of PromQL, at a time or over a range."`
	Write      exchange.Write           `cmd:"" help:"Write rows of standard input or a file; exit code 1: some were refused."`
	Tail       client.Tail              `cmd:"" help:"Print rows as they come."`
	Health     client.Health            `cmd:"" help:"Ask a process whether it is ready; exit code 0: it is, 1: not yet, 2: no answer."`
	Table      administration.Table     `cmd:"" help:"Make, show, change and drop tables."`
	Partition  administration.Partition `cmd:"" help:"Show partitions and their leases, split and steer them."`
	Server     administration.Server    `cmd:"" help:"Show storage servers, drain and remove them."`
	Master     administration.Master    `cmd:"" help:"Show what the master would do."`
	Presplit   administration.Presplit  `cmd:"" help:"Show how partitions are cut ahead of their time, and try it on a recorded load."`
	Doctor     administration.Doctor    `cmd:"" help:"Report the faults of a cluster; exit code 0: nothing, 1: degraded, 2: something is not served."`
	Verify     verify.Command           `cmd:"" help:"Look at a store that no process uses, without changing it; exit code 0: whole, 1: something to look at, 2: damaged, 3: not seen, 4: there is no store."`
	Repair     repair.Command           `cmd:"" help:"Rebuild the catalogue of a data directory that no process uses."`
	Backup     backups.Backup           `cmd:"" help:"Have a running process write a backup into a directory or a bucket; exit code 1: something is missing in it."`
	Restore    backups.Restore          `cmd:"" help:"Make a data directory of a backup; or list and check backups; exit code 1: something is missing."`
	Export     exchange.Export          `cmd:"" help:"Write the rows of a server into a file or into blocks of Prometheus; exit code 1: the format could not hold some."`
	Import     exchange.Import          `cmd:"" help:"Write rows of a file, of a directory of Prometheus, or of another server to a server; exit code 1: some were refused."`
	Config     settings.Command         `cmd:"" help:"Check settings, show them, and list all there are."`
	Audit      administration.Audit     `cmd:"" help:"List what people did."`
	Kafka      topics.Command           `cmd:"" help:"Look at the topics that a running process reads."`
	Certs      credentials.Certs        `cmd:"" help:"Make certificates for the processes of a cluster."`
	Token      credentials.Token        `cmd:"" help:"Make tokens for clients, and check the files that let them in."`
	Completion completion.Command       `cmd:"" help:"Print completion for a shell: source <(spillway completion bash)."`
	Version    versionCmd               `cmd:"" help:"Print the version and stop."`
}

func newCLI() (c cli) {
	b := build()
	c.Standalone.Flags = settings.NewFlags(settings.Standalone, b)
	c.Gateway.Flags = settings.NewFlags(settings.Gateway, b)
	c.Storage.Flags = settings.NewFlags(settings.Storage, b)
	c.Verify.Program = process.Rehearsal{}
	return c
}

func main() {
	c := newCLI()
	k, err := kong.New(&c,
		kong.Name("spillway"),
		kong.Description("A time-series store that takes Prometheus remote write, Influx line protocol, OTLP and Kafka topics, keeps every acked sample, and answers PromQL."),
	)
	if err != nil {
		panic(err) // the struct above is wrong
	}
	help := kong.HelpOptions{Compact: true}
	ctx, err := parse(k, help, withVersion(os.Args[1:]))
	switch {
	case err != nil:
		os.Exit(failUsage(k, help, ctx, err))
	case ctx == nil:
		return // help
	}
	if err := runSelected(ctx); err != nil {
		os.Exit(terminal.Fail(err))
	}
}

// withVersion makes the command of the flag that people try first. As a flag of kong's it would stand in the help of every command.
func withVersion(args []string) []string {
	if slices.Equal(args, []string{"--version"}) {
		return []string{"version"}
	}
	return args
}

type versionCmd struct{}

// Run prints the binary's version, revision and build date.
func (versionCmd) Run() error {
	b := build()
	fmt.Printf("spillway %s (revision %s, built %s)\n", b.Version, b.Revision, b.Date)
	return nil
}

// build describes how this binary was built, as far as the Go tool noted it.
func build() api.Build {
	b := api.Build{Version: version, Revision: "unknown", Date: "unknown"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Date = s.Value
		}
	}
	return b
}

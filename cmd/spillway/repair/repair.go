package repair

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"os"
	"text/tabwriter"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/server"
)

// Command examines a store that no process uses, and rebuilds its catalogue if that is damaged. It ends with 0 when
// nothing was wrong, or everything could be repaired; with 1 when something is lost or closed; with 2 when nothing could
// be done.
type Command struct {
	ConfigFile string  `name:"config.file" help:"YAML file with settings, for data_dir and storage.log_dir." type:"path" env:"SPILLWAY_CONFIG_FILE"`
	DataDir    *string `name:"data-dir" help:"The store (default ./spillway-data)." type:"path"`
	DryRun     bool    `name:"dry-run" help:"Report the changes without making them." xor:"mode"`
	Accept     bool    `name:"accept" help:"Accept that an earlier repair was not exact: answers carry no warning of it any more." xor:"mode"`
}

// Run repairs.
func (c *Command) Run() error {
	cfg, err := settings.Load(c.ConfigFile)
	if err == nil {
		terminal.Over(&cfg.DataDir, c.DataDir)
		err = cfg.Complete()
	}
	if err != nil {
		return terminal.Unseen(err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if c.Accept {
		accepted, err := server.AcceptRebuilt(brick.Deps{FS: vfs.Default, Log: log}, cfg.ForBrick())
		if err != nil {
			return terminal.Unseen(err)
		}
		fmt.Println("accepted:", cmp.Or(accepted, "nothing; no repair of this store was inexact"))
		return nil
	}
	r, err := server.Repair(brick.Deps{FS: vfs.Default, Log: log}, cfg.ForBrick(), c.DryRun)
	if err != nil {
		return terminal.Unseen(err)
	}
	tellRepair(os.Stdout, cfg.DataDir, r)
	if r.Lossy() || r.NoMaps {
		return terminal.Degraded
	}
	return nil
}

// tellRepair prints the findings, the parts rebuilt, and the parts that could not be.
func tellRepair(w io.Writer, dir string, r *server.Repaired) {
	fmt.Fprintf(w, "store      %s\n", dir)
	if r.Trouble == nil {
		fmt.Fprintf(w, "catalogue  whole, commit %d\n", r.Known)
	} else {
		fmt.Fprintf(w, "catalogue  damaged: %v\n", r.Trouble)
	}
	switch would := map[bool]string{true: "would be ", false: ""}[r.DryRun]; {
	case !r.Changed:
		fmt.Fprintln(w, "rebuilt    nothing")
	case r.Exact:
		fmt.Fprintf(w, "rebuilt    %sexactly, of its mirror: commit %d, %d entries; the damaged one %smoved to lost+found\n", would, r.Mirrored, r.Entries, would)
	default:
		fmt.Fprintf(w, "rebuilt    %sof segments, log and what can be read of catalogue and mirror: commit %d is known of, the mirror holds %d; %d entries\n", would, r.Known, r.Mirrored, r.Entries)
		fmt.Fprintf(w, "identity   %snew, since the highest epochs are not known for sure; a cluster takes it for an empty disk: start it with --replace-store\n", would)
		if !r.DryRun {
			fmt.Fprintf(w, "           %s\n", r.Store)
		}
		if r.Metadata > 0 {
			fmt.Fprintf(w, "maps       %sof their own mirror, as of commit %d\n", would, r.Metadata)
		}
		fmt.Fprintln(w, "warnings   answers of the store carry one, since rows may be missing or deleted ones be back; `spillway repair --accept` ends that")
	}
	if r.LogTrouble == nil {
		fmt.Fprintf(w, "log        whole, %d files\n", r.LogFiles)
	} else {
		fmt.Fprintf(w, "log        damaged, %d files: %v\n", r.LogFiles, r.LogTrouble)
	}
	tellPartitions(w, r)
}

func tellPartitions(w io.Writer, r *server.Repaired) {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "\nTABLE\tPARTITION\tPLACEMENT\tSEGMENTS\tROWS IN SEGMENTS\tLOG RECORDS\tENTRY\tSTATE")
	for _, p := range r.Partitions {
		entry, state := "kept", "whole"
		if p.Rebuilt {
			entry = "rebuilt"
		}
		if p.Problem != nil {
			state = "closed: " + p.Problem.Error()
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%d\t%d\t%s\t%s\n", p.Identity.Table, p.Identity.Partition, p.Identity.Placement, p.Segments, p.Rows, p.InLog, entry, state)
	}
	_ = t.Flush() // to the terminal
	if r.NoMaps {
		fmt.Fprintln(w, "not rebuilt: the partition maps (METADATA files): a cluster fetches them from its other servers; a standalone process does not start without them: restore metadata.mirror or catalogue.mirror from a backup, and repair again")
	}
	for _, u := range r.Unknown {
		fmt.Fprintf(w, "not rebuilt: %s\n", u)
	}
}

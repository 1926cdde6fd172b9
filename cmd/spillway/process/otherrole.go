package process

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spillwaydb/spillway/cmd/spillway/settings"
	"github.com/spillwaydb/spillway/cmd/spillway/terminal"
	"github.com/spillwaydb/spillway/metadata/mapstore"
	"github.com/spillwaydb/spillway/metadata/registry"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/storage/brick"
	"github.com/spillwaydb/spillway/storage/lead"
	"github.com/spillwaydb/spillway/storage/metafile"
)

// coordDir is the directory in the data directory of a standalone process in which its coordination store is.
const coordDir = "coord"

// notOfStorage refuses to open the store of a storage server as a standalone process: rows that it acked would be in partitions that the
// cluster never made, and no query reads there. Errors: Invalid, and Corrupt and the brick's.
func notOfStorage(b *brick.Brick, dir string) error {
	if _, err := os.Stat(filepath.Join(dir, coordDir)); err == nil {
		return nil // a standalone process made it, so that no map has to be read
	}
	lived, err := hasLives(b)
	if err != nil {
		return err
	}
	servers := slices.DeleteFunc(mapped(b), func(id topology.ServerID) bool { return id == settings.LocalServer })
	why := "it served a cluster"
	switch {
	case len(servers) > 0:
		why = "its maps have partitions on " + names(servers)
	case !lived: // a server that keeps no table's map
		return nil
	}
	return terminal.UsageError{Err: fault.Errorf(fault.Invalid,
		"%s is the store of a storage server: %s; start it by `spillway storage`, with the name that it had, or give this process a directory of its own by --data-dir", dir, why)}
}

// notOfStandalone refuses to open the store of a standalone process as the storage server id: the cluster knows none of its partitions, and no query
// would read their rows. A directory that served a cluster goes on serving it. Errors: Invalid, and Corrupt and the brick's.
func notOfStandalone(b *brick.Brick, dir string, id topology.ServerID) error {
	if id == settings.LocalServer {
		return nil
	}
	if lived, err := hasLives(b); err != nil || lived {
		return err
	}
	if servers := mapped(b); len(servers) != 1 || servers[0] != settings.LocalServer {
		return nil
	}
	return terminal.UsageError{Err: fault.Errorf(fault.Invalid,
		"%s is the store of a standalone process, whose rows no cluster reads; give this server a directory of its own by --data-dir, and bring the rows over by `spillway import --from` while `spillway standalone` serves them (docs/transfer.md)",
		dir)}
}

// hasLives reports whether a storage server ran on a store: each saves a life before it serves.
func hasLives(b *brick.Brick) (bool, error) {
	l, err := lead.LoadLives(b)
	return l.Known != registry.Life{} || len(l.Tried) > 0, err
}

// mapped lists the servers on which the newest maps in a store have partitions, sorted. Maps that cannot be read are left out: opening the store reports them.
func mapped(b *brick.Brick) (servers []topology.ServerID) {
	disk := metafile.New(b)
	files, err := disk.List()
	if err != nil {
		return nil
	}
	slices.SortFunc(files, func(x, y mapstore.Info) int {
		return cmp.Or(cmp.Compare(x.Table, y.Table), cmp.Compare(y.Seq, x.Seq))
	})
	files = slices.CompactFunc(files, func(x, y mapstore.Info) bool { return x.Table == y.Table }) // the newest of each
	for _, f := range files {
		_, m, err := disk.Get(f.Table, f.Txn)
		if err != nil {
			continue
		}
		for p := range m.All() {
			for _, pl := range p.Placements {
				if at, found := slices.BinarySearch(servers, pl.Server); !found {
					servers = slices.Insert(servers, at, pl.Server)
				}
			}
		}
	}
	return servers
}

// names lists servers for a message, the first few of many.
func names(servers []topology.ServerID) string {
	const shown = 5
	var all []string
	for _, id := range servers[:min(len(servers), shown)] {
		all = append(all, string(id))
	}
	if len(servers) > shown {
		all = append(all, "…")
	}
	return strings.Join(all, ", ")
}

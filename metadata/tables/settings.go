package tables

import (
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
	"github.com/spillwaydb/spillway/protocols/peer"
	"github.com/spillwaydb/spillway/protocols/point"
)

// Deps are the dependencies of Tables.
type Deps struct {
	Store coord.Store
	Log   *slog.Logger
	// Place chooses the servers of a new partition.
	Place func(table string, p point.PartitionID) []topology.ServerID
	// Metadata reaches a metadata server: this process's own by a call, others by the network.
	Metadata func(topology.ServerID) (peer.Metadata, bool)
	// Own is the metadata server in this process, asked first; empty: there is none.
	Own topology.ServerID
	// Servers lists the candidates for metadata servers of a new table, in any order: see MetadataCandidates.
	Servers func() []topology.ServerID
	// Rand makes transaction ids, placement ids and jitter. The tables keep it. Default: one seeded by the machine.
	Rand *rand.Rand
	// Cache keeps maps for a start without the store; nil: there is none.
	Cache Cache
}

// Cache keeps the newest maps somewhere. Its methods are called from one goroutine.
type Cache interface {
	// Load returns the last saved state of each table. An error is logged, and the tables returned beside it are used.
	Load() ([]Cached, error)
	// Save keeps a table's map in place of an older one. An error is logged; the map is saved again when it changes.
	Save(Cached) error
	// Forget drops a table that is no more.
	Forget(table string) error
}

// Cached is a table's state at a time.
type Cached struct {
	Table string
	Row   []byte // the table's row
	Map   []byte // topology.Map.Encode
	At    time.Time
}

// Settings are numbers a user sets.
type Settings struct {
	// New is the configuration of tables made without one of their own.
	New topology.Config
	// CreateOnWrite lets Ensure make tables that do not exist.
	CreateOnWrite bool
	// Prove asks the store for all rows every few seconds, so that Age can report how old a map may be. For processes that answer by their maps.
	Prove bool
	// TablesMax bounds how many tables writers can bring into being. Default 10,000.
	TablesMax int
	// NewPerSecond bounds the tables that this process makes for writers, beyond a burst of NewBurst; more are answered
	// Throttled. A person's command is not bounded. Default 20. Larger: one sender that invents names takes the disk from others.
	NewPerSecond int
	// MetadataServers is the number of servers that keep a new table's METADATA file, or all where there are fewer. Default 3.
	MetadataServers int
	// ChangeTimeout ends a change that loses every race, or finds no metadata server. Default 20 s.
	ChangeTimeout time.Duration
	// ServerTimeout ends a request to one metadata server, after which another is asked. Default 5 s.
	ServerTimeout time.Duration
	// WaitingMax bounds the changes of one table that wait in this process. Default 4096; beyond, they are Throttled.
	WaitingMax int
}

// NewBurst is how many tables writers make at once before NewPerSecond limits them: a fleet that comes up brings its own.
const NewBurst = 200

// SetDefaults gives fields that are zero their defaults.
func (s *Settings) SetDefaults() {
	if s.TablesMax == 0 {
		s.TablesMax = 10_000
	}
	if s.NewPerSecond == 0 {
		s.NewPerSecond = 20
	}
	if s.MetadataServers == 0 {
		s.MetadataServers = 3
	}
	if s.ChangeTimeout == 0 {
		s.ChangeTimeout = 20 * time.Second
	}
	if s.ServerTimeout == 0 {
		s.ServerTimeout = 5 * time.Second
	}
	if s.WaitingMax == 0 {
		s.WaitingMax = 4096
	}
}

// Validate reports settings that cannot work. Errors are Invalid.
func (s Settings) Validate() error {
	if s.TablesMax < 0 || s.MetadataServers < 0 || s.MetadataServers > 15 || s.ChangeTimeout < 0 || s.ServerTimeout < 0 || s.WaitingMax < 0 || s.NewPerSecond < 0 {
		return fault.Errorf(fault.Invalid, "settings of tables: nothing may be negative, and at most 15 servers keep a METADATA file: %+v", s)
	}
	return fault.Annotate(s.New.Validate(), "configuration of new tables")
}

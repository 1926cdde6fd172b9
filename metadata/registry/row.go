package registry

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/spillwaydb/spillway/metadata/coord"
	"github.com/spillwaydb/spillway/metadata/lease"
	"github.com/spillwaydb/spillway/metadata/topology"
	"github.com/spillwaydb/spillway/protocols/fault"
)

// Prefix covers the rows of all servers.
const Prefix = "servers/"

// Key is the key of a server's row.
func Key(id topology.ServerID) string { return Prefix + string(id) }

// Server is a storage server's row.
type Server struct {
	ID topology.ServerID `json:"id"`
	// Addr is where peers reach it, host:port.
	Addr string `json:"addr"`
	// Host and Zone may fail as one: no two placements of a partition share a host, or a zone where there are
	// enough.
	Host string `json:"host"`
	Zone string `json:"zone,omitempty"`
	// Store is its store directory; a new one means that all its rows are gone (C72).
	Store lease.StoreID `json:"store"`
	// Life is that of the store directory which uses the name (Begin).
	Life Life `json:"life,omitzero"`
	// Version is the binary's.
	Version string `json:"version,omitempty"`
	// Copies is CopiesOn if it keeps copies of partitions that others lead (storage.copies), else CopiesOff; "": its build does not say.
	Copies string `json:"copies,omitempty"`
	// Slices is true if its build names the sender in slices of partitions that unload, so that they can be ended (storage/unload); false: rows that it sent, however long ago it led,
	// are over by their time alone. Builds from before lose it where they write the row.
	Slices bool `json:"slices,omitempty"`
	// Since is when it first registered with this directory, by its wall clock, or with this directory after frames that it staged were lost: what it staged before may be
	// gone. For people, too.
	Since time.Time `json:"since"`
	// Unreached, while set, is why no process has reached the server at Addr yet: it gets no placements and no staged rows, and leads nothing that another can lead. The server sets it
	// when it registers, if it does not reach itself there; it or the first peer that does removes it (Reached). Builds from before ignore it.
	Unreached string `json:"unreached,omitempty"`
	// WasReached, while Unreached is set: the server was one of the cluster at an address before. It counts among those that a row is to be on, as a silent one does.
	WasReached bool `json:"was_reached,omitempty"`
	// Drain, while set, makes the master move every placement away (C124).
	Drain *lease.Note `json:"drain,omitempty"`
	// Moves are the placements that persons, or the master for load, have leave the server.
	Moves []Move `json:"moves,omitempty"`
	// Unfilled are moves for load away from the server that ended because their targets did not get every row, each with when and why in its note. Neither the partition nor the target has
	// part in another one for a while. Builds from before ignore them, and lose them where they write the row.
	Unfilled []Move `json:"unfilled,omitempty"`
	// Staging names the tables of which rows may be staged there (StagingOf). The server adds a table before it acks the first such row.
	Staging string `json:"staging,omitempty"`
}

// Takes reports whether new placements and staged rows may go to the server, as far as its row says.
func (s *Server) Takes() bool { return s.Drain == nil && s.Unreached == "" }

// Values of Server.Copies.
const (
	CopiesOn  = "on"
	CopiesOff = "off"
)

const (
	stagingSeparator = " " // no table has it in its name
	stagingAll       = "*"
	stagingBytesMax  = 16 << 10
)

// StagingOf is the form of Server.Staging for a list of tables. More than fit stand for all tables.
func StagingOf(tables []string) string {
	s := strings.Join(tables, stagingSeparator)
	if len(s) > stagingBytesMax {
		return stagingAll
	}
	return s
}

// Stages reports whether rows of a table may be staged on the server.
func (s *Server) Stages(table string) bool {
	return s.Staging != "" && (s.Staging == stagingAll || slices.Contains(strings.Split(s.Staging, stagingSeparator), table))
}

const rowVersion = 1

// RowMax bounds the stored form of a row, in bytes: a longer one is not read.
const RowMax = 64 << 10

// Validate reports faults that make a row useless. Errors are Invalid.
func (s Server) Validate() error {
	switch {
	case s.ID == "" || len(s.ID) > 200 || strings.ContainsAny(string(s.ID), "/ \t\n"):
		return fault.Errorf(fault.Invalid, "server id %q: one to 200 bytes without slashes and spaces", s.ID)
	case s.Addr == "":
		return fault.Errorf(fault.Invalid, "server %q has no address for its peers", s.ID)
	case s.Host == "":
		return fault.Errorf(fault.Invalid, "server %q names no host", s.ID)
	}
	return nil
}

// Encode gives the row's stored form: JSON with a version.
func (s Server) Encode() []byte {
	b, err := json.Marshal(struct {
		V int `json:"v"`
		Server
	}{rowVersion, s})
	if err != nil {
		fault.Bug("a server's row does not encode: %v", err)
	}
	return b
}

// Decode reads a row and checks it. Errors are Corrupt.
func Decode(row coord.Row) (Server, error) {
	var s struct {
		V int `json:"v"`
		Server
	}
	if len(row.Value) > RowMax {
		return Server{}, fault.Errorf(fault.Corrupt, "row %s has %d bytes, more than %d", row.Key, len(row.Value), RowMax)
	}
	if err := json.Unmarshal(row.Value, &s); err != nil {
		return Server{}, fault.Wrap(err, fault.Corrupt, "row %s", row.Key)
	}
	if s.V != rowVersion {
		return Server{}, fault.Errorf(fault.Corrupt, "row %s is of version %d; this build reads version %d", row.Key, s.V, rowVersion)
	}
	if err := s.Validate(); err != nil {
		return Server{}, fault.Wrap(err, fault.Corrupt, "row %s", row.Key)
	}
	if Key(s.ID) != row.Key {
		return Server{}, fault.Errorf(fault.Corrupt, "row %s names server %q", row.Key, s.ID)
	}
	return s.Server, nil
}

package figures

import (
	"sync"
	"time"

	"github.com/spillwaydb/spillway/gateway/ui"
)

// Growth counts the rows by which the partitions of each server grow, from one look at the status to the next. A page that looks twice divides by the
// time between: as partitions end and others begin, it sees which servers have the load. It holds a number for each partition of the maps (I5).
type Growth struct {
	mu   sync.Mutex
	from time.Time // of the first look
	at   time.Time // of the last look; zero: there was none
	rows map[grown]*uint64
	by   map[string]uint64 // by server, since the first look
}

// grown names a partition of a table.
type grown struct {
	table string
	id    uint64
}

// Count adds the rows of each partition since the last call to the server that leads it now, and sets Server.Grown. The status must have all tables. For a
// partition that did not exist at the last call all rows count; for one whose rows were not known then, or are fewer now, none.
func (g *Growth) Count(s *ui.Status) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.at.IsZero() {
		g.from = s.Now
	}
	if s.Now.After(g.at) {
		g.look(s)
	}
	from := g.from
	s.GrownSince = &from
	for i := range s.Servers {
		n := g.by[s.Servers[i].ID]
		s.Servers[i].Grown = &n
	}
}

func (g *Growth) look(s *ui.Status) {
	rows, by := map[grown]*uint64{}, map[string]uint64{}
	for _, one := range s.Servers {
		by[one.ID] = g.by[one.ID]
	}
	for i := range s.Tables {
		t := &s.Tables[i]
		for j := range t.Partitions {
			p := &t.Partitions[j]
			key := grown{t.Name, p.ID}
			was, seen := g.rows[key]
			rows[key] = p.Rows
			if p.Rows == nil || g.at.IsZero() || seen && was == nil {
				continue
			}
			before := uint64(0)
			if seen {
				before = *was
			}
			if _, known := by[p.Leader]; known && *p.Rows > before {
				by[p.Leader] += *p.Rows - before
			}
		}
	}
	g.at, g.rows, g.by = s.Now, rows, by
}
